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
	table      uint32 // of its header decoder
}

func defaultPeerSettings() peerSettings {
	return peerSettings{maxFrame: minMaxFrame, window: defaultWindow, maxStreams: math.MaxUint32, maxHeaders: math.MaxUint32, table: hpackTable}
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
	c, err := s.readSettings(f)
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

// settingsChange is what one SETTINGS frame does: the values that hold after it,
// and the extremes on the way that have an effect of their own.
type settingsChange struct {
	peerSettings
	widestWindow  int
	smallestTable uint32
}

// readSettings folds the entries of f, in their order (RFC 9113 §6.5.3), into
// one change, without the lock: however many there are, the streams' windows are
// moved once.
func (s *Session) readSettings(f *http2.SettingsFrame) (settingsChange, error) {
	p := s.peer // only the reading goroutine writes it
	c := settingsChange{peerSettings: p, widestWindow: p.window, smallestTable: p.table}
	err := f.ForeachSetting(func(v http2.Setting) error {
		if v.Valid() != nil {
			code := http2.ErrCodeProtocol
			if v.ID == http2.SettingInitialWindowSize {
				code = http2.ErrCodeFlowControl
			}
			return connError(code, "bad setting %v", v)
		}
		switch v.ID {
		case http2.SettingEnablePush:
			if v.Val != 0 && s.client {
				return connError(http2.ErrCodeProtocol, "server sent ENABLE_PUSH 1")
			}
		case http2.SettingMaxFrameSize:
			c.maxFrame = int(v.Val)
		case http2.SettingMaxConcurrentStreams:
			c.maxStreams = v.Val
		case http2.SettingMaxHeaderListSize:
			c.maxHeaders = v.Val
		case http2.SettingHeaderTableSize:
			c.table = v.Val
			c.smallestTable = min(c.smallestTable, v.Val)
		case http2.SettingInitialWindowSize:
			c.window = int(v.Val)
			c.widestWindow = max(c.widestWindow, c.window)
		}
		return nil
	})
	return c, err
}

// takeSettings makes c the peer's settings and acknowledges them.
func (s *Session) takeSettings(c settingsChange) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.applyWindowLocked(c.window-s.peer.window, c.widestWindow-s.peer.window); err != nil {
		return err
	}
	if c.table != s.peer.table || c.smallestTable != s.peer.table {
		s.send.tableSize(c.smallestTable) // RFC 7541 §4.2: the peer's decoder hears of the smallest, too
		s.send.tableSize(c.table)
	}
	s.peer = c.peerSettings
	s.notifyObserver()
	s.send.control.add(nil, appendHeader(nil, 0, frameSettings, flagAck, 0), 0)
	s.kickLocked()
	if !s.recv.frames.gotSettings {
		s.recv.frames.gotSettings = true
		s.stopSettingsTimerLocked()
		s.alive.LastHeard = time.Now()
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
		if st.send.window+widest > maxWindow {
			return connError(http2.ErrCodeFlowControl, "window of stream %d overflows", st.id)
		}
		st.send.widen(delta)
	}
	return nil
}
