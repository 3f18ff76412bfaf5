package hbone

import (
	"math"
	"time"

	"golang.org/x/net/http2"
)

// peerSettings are what the peer announced, with RFC 9113's values before that.
type peerSettings struct {
	maxFrame   int
	window     int // initial window of a stream
	maxStreams uint32
	maxHeaders uint32
}

func defaultPeerSettings() peerSettings {
	return peerSettings{maxFrame: minMaxFrame, window: defaultWindow, maxStreams: math.MaxUint32, maxHeaders: math.MaxUint32}
}

// ourPreface is everything that we send before the first stream, in the order
// of a stock peer.
func (s *Session) ourPreface() []byte {
	var b []byte
	if s.client {
		b = append(b, http2.ClientPreface...)
		b = appendSettings(b,
			http2.Setting{ID: http2.SettingEnablePush, Val: 0},
			http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(s.cfg.FirstWindow)},
			http2.Setting{ID: http2.SettingMaxFrameSize, Val: uint32(s.cfg.MaxFrame)},
			http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: uint32(s.cfg.MaxHeaderList)})
	} else {
		b = appendSettings(b,
			http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: uint32(s.cfg.MaxStreams)},
			http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(s.cfg.FirstWindow)},
			http2.Setting{ID: http2.SettingMaxFrameSize, Val: uint32(s.cfg.MaxFrame)},
			http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: uint32(s.cfg.MaxHeaderList)})
	}
	if n := s.cfg.ConnWindow - defaultWindow; n > 0 {
		b = appendWindowUpdate(b, 0, n)
	}
	return b
}

func (s *Session) onSettings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		s.tookRTT(time.Since(s.began))
		return nil
	}
	if err := s.spend("SETTINGS frames"); err != nil {
		return err
	}
	first := !s.reader.settled
	if err := s.takeSettings(f); err != nil {
		return err
	}
	if first && s.client {
		s.startPings()
	}
	return nil
}

func (s *Session) takeSettings(f *http2.SettingsFrame) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := f.ForeachSetting(s.applySetting); err != nil {
		return err
	}
	s.w.control.add(nil, appendHeader(nil, 0, frameSettings, flagAck, 0), 0)
	s.kick()
	if !s.reader.settled {
		s.reader.settled = true
		s.stopOverdue()
		s.alive.heard = time.Now()
		close(s.settled)
	}
	return nil
}

// applySetting is called with mu held.
func (s *Session) applySetting(v http2.Setting) error {
	if v.Valid() != nil {
		code := http2.ErrCodeProtocol
		if v.ID == http2.SettingInitialWindowSize {
			code = http2.ErrCodeFlowControl
		}
		return connFault(code, "bad setting %v", v)
	}
	switch v.ID {
	case http2.SettingEnablePush:
		if v.Val != 0 && s.client {
			return connFault(http2.ErrCodeProtocol, "server sent ENABLE_PUSH 1")
		}
	case http2.SettingMaxFrameSize:
		s.peer.maxFrame = int(v.Val)
	case http2.SettingMaxConcurrentStreams:
		s.peer.maxStreams = v.Val
	case http2.SettingMaxHeaderListSize:
		s.peer.maxHeaders = v.Val
	case http2.SettingHeaderTableSize:
		s.w.tableSize(v.Val)
	case http2.SettingInitialWindowSize:
		return s.applyWindow(int(v.Val))
	}
	return nil
}

// applyWindow moves the windows of all open streams by the difference (RFC 9113
// §6.9.2); they may become negative.
func (s *Session) applyWindow(window int) error {
	delta := window - s.peer.window
	s.peer.window = window
	for _, st := range s.streams {
		st.sendAvail += delta
		if st.sendAvail > maxWindow {
			return connFault(http2.ErrCodeFlowControl, "window of stream %d overflows", st.id)
		}
		if delta > 0 {
			st.wcond.Broadcast()
		}
	}
	return nil
}
