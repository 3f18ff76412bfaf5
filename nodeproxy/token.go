package nodeproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/isthmus-mesh/isthmus/internal/secretfile"
)

// maxToken bounds a token file in bytes; a bound service-account token has about 1 500.
const maxToken = 16 << 10

// token returns what reads the token that proves this node, anew each time as it is
// replaced from time to time; nil where the certificate names the node.
func (f Federation) token() func(context.Context) ([]byte, error) {
	if f.Token == "" {
		return nil
	}
	return func(context.Context) ([]byte, error) {
		b, err := secretfile.Read(f.Token)
		if err != nil {
			return nil, fmt.Errorf("federation.token: %w", err)
		}
		if len(b) > maxToken {
			return nil, fmt.Errorf("federation.token: %s has more than %d bytes: it is no token", f.Token, maxToken)
		}
		if b = bytes.TrimSpace(b); len(b) == 0 {
			return nil, fmt.Errorf("federation.token: %s: %w", f.Token, errors.New("is empty: mount a projected service-account token there"))
		}
		return b, nil
	}
}
