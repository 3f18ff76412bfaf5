//go:build linux

package main

import (
	"fmt"
	"os/exec"
	"strings"
)

// ruleset redirects what a client's host sends to virtual addresses, as a node
// agent would. It needs the command nft.
func (t topology) ruleset(kind string) string {
	near, far := vip("near", kind), vip("far", kind)
	toNear, toFar := nearPort, farPort
	if kind == stock {
		toNear, toFar = stockOutbound, stockOutbound
	}
	return fmt.Sprintf(`table ip bench {
	chain output {
		type nat hook output priority -100;
		ip daddr %v tcp dport 80 redirect to :%d
		ip daddr %v tcp dport 80 redirect to :%d
	}
}
`, near, toNear, far, toFar)
}

// redirect loads the rules of a kind's client. The kernel's times for connections
// that it translates stay as they are: after a FIN that was sent twice it takes a
// half-closed one for ended, and forgets it after nf_conntrack_tcp_timeout_time_wait.
func (w *world) redirect(kind string) error {
	return w.space.In(w.clients[kind].host, func() error {
		nft := exec.Command("nft", "-f", "-") // its sockets are where this thread is
		nft.Stdin = strings.NewReader(w.ruleset(kind))
		if out, err := nft.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	})
}
