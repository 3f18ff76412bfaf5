package hbone

import (
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/wire"
	"golang.org/x/net/http2"
)

// What a peer may send per second and session before it is told
// ENHANCE_YOUR_CALM. A stock peer sends single-digit numbers of the first two.
const (
	maxIdleFrames = 1000 // SETTINGS, PING, PRIORITY, GOAWAY, unknown, empty DATA
	maxResets     = 500  // CONNECTs reset before they were answered

	// CONNECTs beyond maxNewStreams are refused, which costs next to nothing and
	// may be tried again; twice as many are abuse. A core opens fewer than that.
	maxNewStreams = 10_000
)

// countIdleFrame counts a frame that costs us work and moves nothing, n for one that
// costs as much as n.
func (s *Session) countIdleFrame(what string, n int) error {
	if s.recv.idleFrames.Add(time.Now(), n) > maxIdleFrames {
		return wire.ConnError(http2.ErrCodeEnhanceYourCalm, "too many frames that carry nothing, at last %s", what)
	}
	return nil
}
