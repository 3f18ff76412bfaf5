package nodeproxy

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/internal/secretfile"
)

// maxToken bounds a token file in bytes; a bound service-account token has about 1 500.
const maxToken = 16 << 10

// token returns a function that reads the token that proves this node, or nil where the
// certificate names the node. The file is read each time, as it is replaced from time to time.
// The first of several failures is logged.
func (f Federation) token(log zerolog.Logger) func(context.Context) ([]byte, error) {
	if f.Token == "" {
		return nil
	}
	failing := new(atomic.Bool)
	return func(context.Context) ([]byte, error) {
		b, err := f.readToken()
		if was := failing.Swap(err != nil); err != nil && !was {
			log.Warn().Err(err).Msg("health streams wait for federation.token")
		}
		return b, err
	}
}

func (f Federation) readToken() ([]byte, error) {
	b, err := secretfile.Read(f.Token)
	if err != nil {
		return nil, fmt.Errorf("federation.token: %w", err)
	}
	if len(b) > maxToken {
		return nil, fmt.Errorf("federation.token: %s has more than %d bytes: it is no token", f.Token, maxToken)
	}
	if b = bytes.TrimSpace(b); len(b) == 0 {
		return nil, fmt.Errorf("federation.token: %s: is empty: mount a projected service-account token there", f.Token)
	}
	return b, nil
}
