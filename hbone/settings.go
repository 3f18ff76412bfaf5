package hbone

import (
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/wire"
	"golang.org/x/net/http2"
)

// greetLocked queues the preface, unless it is queued.
func (s *Session) greetLocked() {
	if s.settingsSentAt.IsZero() {
		s.settingsSentAt = time.Now()
		s.send.control.add(nil, s.ourPreface(), 0)
	}
}

// ourPreface is everything that we send before the first stream, in the order
// of a stock peer.
func (s *Session) ourPreface() []byte {
	var b []byte
	if s.client {
		b = append(b, http2.ClientPreface...)
		b = wire.AppendSettings(b,
			http2.Setting{ID: http2.SettingEnablePush, Val: 0},
			http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(s.cfg.FirstWindow)},
			http2.Setting{ID: http2.SettingMaxFrameSize, Val: uint32(s.cfg.MaxFrame)},
			http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: uint32(s.cfg.MaxHeaderList)})
	} else {
		b = wire.AppendSettings(b,
			http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: uint32(s.cfg.MaxStreams)},
			http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(s.cfg.FirstWindow)},
			http2.Setting{ID: http2.SettingMaxFrameSize, Val: uint32(s.cfg.MaxFrame)},
			http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: uint32(s.cfg.MaxHeaderList)})
	}
	if n := s.cfg.ConnWindow - wire.DefaultWindow; n > 0 {
		b = wire.AppendWindowUpdate(b, 0, n)
	}
	return b
}

func (s *Session) onSettings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		if !s.recv.frames.acked {
			s.recv.frames.acked = true
			s.path.observeRTT(time.Since(s.settingsSentAt))
			return nil
		}
		return s.countIdleFrame("SETTINGS acknowledgements of nothing", 1)
	}
	if err := s.countIdleFrame("SETTINGS frames", 1+f.NumSettings()/settingsPerFrame); err != nil {
		return err
	}
	first := !s.recv.frames.gotSettings
	c, err := s.peer.Read(f, s.client) // only the reading goroutine writes s.peer
	if err != nil {
		return err
	}
	if err := s.takeSettings(c); err != nil {
		return err
	}
	if first && s.client {
		s.startPings()
	}
	return nil
}

// settingsPerFrame is how many entries of a SETTINGS frame cost as much as a
// frame: RFC 9113 defines six, and a frame of 64 KiB has room for 10 000.
const settingsPerFrame = 16

// takeSettings makes c the peer's settings and acknowledges them.
func (s *Session) takeSettings(c wire.SettingsChange) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.applyWindowLocked(c.Window-s.peer.Window, c.WidestWindow-s.peer.Window); err != nil {
		return err
	}
	if c.Table != s.peer.Table || c.SmallestTable != s.peer.Table {
		s.send.tableSize(c.SmallestTable) // RFC 7541 §4.2: the peer's decoder is told of the smallest, too
		s.send.tableSize(c.Table)
	}
	s.peer = c.Settings
	s.notifyObserver()
	s.send.control.add(nil, wire.AppendHeader(nil, 0, wire.FrameSettings, wire.FlagAck, 0), 0)
	s.kickLocked()
	if !s.recv.frames.gotSettings {
		s.recv.frames.gotSettings = true
		s.stopSettingsTimerLocked()
		s.alive.LastAnswer = time.Now()
		close(s.life.settingsReceived)
	}
	return nil
}

// applyWindowLocked moves the windows of all open streams by delta (RFC 9113 §6.9.2),
// by way of widest; they may become negative.
func (s *Session) applyWindowLocked(delta, widest int) error {
	if delta == 0 && widest == 0 {
		return nil
	}
	for _, st := range s.streams {
		if st.send.window+widest > wire.MaxWindow {
			return wire.ConnError(http2.ErrCodeFlowControl, "window of stream %d overflows", st.id)
		}
		st.send.widen(delta)
	}
	return nil
}
