package logging

import (
	"strconv"
	"testing"
	"time"
)

func TestAPeerWithEverNewKeysSilencesNobodyElse(t *testing.T) {
	l := PeerLimits{Every: time.Minute}
	now := time.Unix(1000, 0)
	through := 0
	for i := range 100_000 {
		if _, ok := l.Allow("loud", strconv.Itoa(i), now); ok {
			through++
		}
	}
	if through != keysPerPeer+1 {
		t.Errorf("%d lines of one peer; want %d", through, keysPerPeer+1)
	}
	for _, peer := range []string{"quiet", "other"} {
		if _, ok := l.Allow(peer, "1", now); !ok {
			t.Errorf("the first line of %s has to wait", peer)
		}
		if _, ok := l.Allow(peer, "1", now); ok {
			t.Errorf("the second line of %s about the same key is let through", peer)
		}
	}
	if held, ok := l.Allow("loud", "0", now.Add(time.Minute)); !ok || held != 0 {
		t.Errorf("after the interval: %d, %t", held, ok)
	}
}

func TestPeerLimitsAreBounded(t *testing.T) {
	l := PeerLimits{Every: time.Minute}
	now := time.Unix(1000, 0)
	through := 0
	for i := range 10_000 {
		if _, ok := l.Allow(strconv.Itoa(i), "same", now); ok {
			through++
		}
	}
	if through != maxPeers+1 || len(l.peers) != maxPeers+1 {
		t.Errorf("%d lines, %d peers; want %d", through, len(l.peers), maxPeers+1)
	}
	if _, ok := l.Allow("later", "same", now.Add(time.Hour)); !ok || len(l.peers) != 1 {
		t.Errorf("%d peers after an hour; want the old ones gone", len(l.peers))
	}
}
