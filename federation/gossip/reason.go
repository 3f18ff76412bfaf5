package gossip

import (
	"errors"

	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

// reasonOf is [peer.Reason] that knows what the ledger refuses, too.
func reasonOf(err error) string {
	var (
		certificate *networkkey.RefusedError
		invalid     *record.InvalidError
	)
	switch {
	case errors.Is(err, ledger.ErrSignature):
		return "signature"
	case errors.As(err, &certificate):
		return "network_" + string(certificate.Reason)
	case errors.Is(err, ledger.ErrFull), errors.Is(err, record.ErrTooLarge):
		return "full"
	case errors.As(err, &invalid):
		return "malformed"
	}
	return peer.Reason(err)
}
