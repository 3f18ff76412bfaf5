package linkcard

import (
	"slices"

	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
)

// setAddresses writes where the gateways of a network are dialed; a card without any takes
// away none that are known.
func setAddresses(l *keyfile.Link, addresses []string) {
	if len(addresses) > 0 {
		l.Addresses = slices.Clone(addresses)
	}
}
