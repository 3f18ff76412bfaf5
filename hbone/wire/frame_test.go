package wire

import (
	"bytes"
	"slices"
	"testing"

	"golang.org/x/net/http2"
)

// What is written by hand is what the Framer writes.
func TestFramesAreThoseOfTheFramer(t *testing.T) {
	var b bytes.Buffer
	fr := http2.NewFramer(&b, nil)
	settings := []http2.Setting{{ID: http2.SettingMaxFrameSize, Val: 1 << 20}, {ID: http2.SettingEnablePush}}
	block := bytes.Repeat([]byte("block"), 10)
	for name, c := range map[string]struct {
		got  []byte
		want func()
	}{
		"RST_STREAM":    {AppendRST(nil, 3, http2.ErrCodeCancel), func() { fr.WriteRSTStream(3, http2.ErrCodeCancel) }},
		"WINDOW_UPDATE": {AppendWindowUpdate(nil, 5, MaxWindow), func() { fr.WriteWindowUpdate(5, MaxWindow) }},
		"PING":          {AppendPing(nil, true, [8]byte{1, 2}), func() { fr.WritePing(true, [8]byte{1, 2}) }},
		"GOAWAY":        {AppendGoAway(nil, 7, http2.ErrCodeProtocol, "why"), func() { fr.WriteGoAway(7, http2.ErrCodeProtocol, []byte("why")) }},
		"SETTINGS":      {AppendSettings(nil, settings...), func() { fr.WriteSettings(settings...) }},
		"HEADERS": {AppendHeaderBlock(nil, 1, block, true, 100), func() {
			fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndHeaders: true, EndStream: true})
		}},
		"CONTINUATION": {AppendHeaderBlock(nil, 1, block, false, 20), func() {
			fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:20]})
			fr.WriteContinuation(1, false, block[20:40])
			fr.WriteContinuation(1, true, block[40:])
		}},
	} {
		b.Reset()
		if c.want(); !bytes.Equal(c.got, b.Bytes()) {
			t.Errorf("%s: %x, want %x", name, c.got, b.Bytes())
		}
	}
}

func TestPaddingThatFits(t *testing.T) {
	for _, c := range []struct {
		flags   byte
		payload []byte
		ok      bool
	}{
		{0, []byte{9}, true},
		{FlagPadded, nil, true}, // for the Framer
		{FlagPadded, []byte{0}, true},
		{FlagPadded, []byte{1}, false},
		{FlagPadded, []byte{2, 0, 0}, true},
		{FlagPadded | FlagPriority, []byte{1, 0, 0, 0, 0, 0}, false},
		{FlagPadded | FlagPriority, []byte{1, 0, 0, 0, 0, 0, 0}, true},
	} {
		if err := CheckPadding(Header{Flags: c.flags}, c.payload); (err == nil) != c.ok {
			t.Errorf("flags %#x, payload %v: %v", c.flags, c.payload, err)
		}
	}
}

// read gives b to the Framer as the payload of a frame.
func read(t *testing.T, kind http2.FrameType, b []byte) (http2.Frame, error) {
	t.Helper()
	fr := http2.NewFramer(nil, bytes.NewReader(append(AppendHeader(nil, len(b), byte(kind), 0, 0), b...)))
	return fr.ReadFrame()
}

func FuzzFrame(f *testing.F) {
	f.Add(AppendRST(nil, 3, http2.ErrCodeCancel))
	f.Add(AppendGoAway(nil, 7, http2.ErrCodeProtocol, "why"))
	f.Add(AppendSettings(nil, http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1}))
	f.Add(append(AppendHeader(nil, 6, FrameHeaders, FlagPadded|FlagPriority, 1), 9, 0, 0, 0, 0, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < HeaderLen {
			return
		}
		h, payload := ParseHeader(b), b[HeaderLen:]
		if got := AppendHeader(nil, h.Length, h.Kind, h.Flags, h.ID); !slices.Equal(got[:5], b[:5]) || ParseHeader(got) != h || h.ID > MaxStreamID {
			t.Errorf("%x is read as %+v, which is %x", b[:HeaderLen], h, got)
		}
		if detail := Detail(h, payload); detail != "" && !HasDetail(h) {
			t.Errorf("%+v has the detail %q", h, detail)
		}
		CheckPadding(h, payload)
	})
}

// What a SETTINGS frame says is what its entries say one after the other.
func FuzzSettings(f *testing.F) {
	f.Add([]byte{0, 4, 0, 0, 0, 1, 0, 4, 0, 1, 0, 0}, false)
	f.Add([]byte{0, 2, 0, 0, 0, 1}, true)
	f.Add([]byte{0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 16, 0, 0, 5, 0, 0, 0, 1}, false)
	f.Fuzz(func(t *testing.T, b []byte, fromServer bool) {
		frame, err := read(t, http2.FrameSettings, b)
		if err != nil {
			return
		}
		got, err := DefaultSettings().Read(frame.(*http2.SettingsFrame), fromServer)
		want := SettingsChange{Settings: DefaultSettings(), WidestWindow: DefaultWindow, SmallestTable: HeaderTable}
		for ; len(b) >= 6; b = b[6:] {
			one, oerr := read(t, http2.FrameSettings, b[:6])
			if oerr != nil { // the Framer looks at the first window of a frame alone
				if err == nil {
					t.Errorf("%+v, want %v", got, oerr)
				}
				return
			}
			c, cerr := want.Settings.Read(one.(*http2.SettingsFrame), fromServer)
			if cerr != nil {
				if err == nil || err.Error() != cerr.Error() {
					t.Errorf("%v, want %v", err, cerr)
				}
				return
			}
			want = SettingsChange{Settings: c.Settings, WidestWindow: max(want.WidestWindow, c.Window), SmallestTable: min(want.SmallestTable, c.Table)}
		}
		if err != nil || got != want {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
		if got.MaxFrame < MinMaxFrame || got.MaxFrame > MaxMaxFrame || got.Window > MaxWindow {
			t.Errorf("%+v is out of range", got)
		}
	})
}
