package wire

import (
	"math"

	"golang.org/x/net/http2"
)

// Settings are what a peer has announced.
type Settings struct {
	MaxFrame   int // largest payload that it accepts, in bytes
	Window     int // initial window of a stream, in bytes
	MaxStreams uint32
	MaxHeaders uint32 // largest header list, in bytes as RFC 9113 §6.5.2 counts them
	Table      uint32 // of its header decoder, in bytes
}

// DefaultSettings are RFC 9113's, until a peer has announced others.
func DefaultSettings() Settings {
	return Settings{MaxFrame: MinMaxFrame, Window: DefaultWindow, MaxStreams: math.MaxUint32, MaxHeaders: math.MaxUint32, Table: HeaderTable}
}

// SettingsChange is what one SETTINGS frame does: the values that hold after it,
// and the extremes on the way that have an effect of their own.
type SettingsChange struct {
	Settings
	WidestWindow  int
	SmallestTable uint32
}

// Read folds the entries of f, in their order (RFC 9113 §6.5.3), into one change of
// s: however many there are, the streams' windows are moved once. The error is a
// *ProtocolError.
func (s Settings) Read(f *http2.SettingsFrame, fromServer bool) (SettingsChange, error) {
	c := SettingsChange{Settings: s, WidestWindow: s.Window, SmallestTable: s.Table}
	err := f.ForeachSetting(func(v http2.Setting) error {
		if v.Valid() != nil {
			code := http2.ErrCodeProtocol
			if v.ID == http2.SettingInitialWindowSize {
				code = http2.ErrCodeFlowControl
			}
			return ConnError(code, "bad setting %v", v)
		}
		switch v.ID {
		case http2.SettingEnablePush:
			if v.Val != 0 && fromServer {
				return ConnError(http2.ErrCodeProtocol, "server sent ENABLE_PUSH 1")
			}
		case http2.SettingMaxFrameSize:
			c.MaxFrame = int(v.Val)
		case http2.SettingMaxConcurrentStreams:
			c.MaxStreams = v.Val
		case http2.SettingMaxHeaderListSize:
			c.MaxHeaders = v.Val
		case http2.SettingHeaderTableSize:
			c.Table = v.Val
			c.SmallestTable = min(c.SmallestTable, v.Val)
		case http2.SettingInitialWindowSize:
			c.Window = int(v.Val)
			c.WidestWindow = max(c.WidestWindow, c.Window)
		}
		return nil
	})
	return c, err
}
