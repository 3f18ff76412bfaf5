package link

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"pgregory.net/rapid"
)

func TestFramesComeBackAsTheyWereAppended(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bodies := rapid.SliceOf(rapid.SliceOfN(rapid.Byte(), 0, 64)).Draw(t, "bodies")
		var wire []byte
		for _, b := range bodies {
			wire = AppendFrame(wire, b)
		}
		r := bytes.NewReader(wire)
		var buf []byte
		for i, want := range bodies {
			got, err := ReadFrame(r, 64, buf)
			if err != nil || !bytes.Equal(got, want) {
				t.Fatalf("frame %d: got %x, %v; want %x", i, got, err, want)
			}
			buf = got
		}
		if _, err := ReadFrame(r, 64, buf); err != io.EOF {
			t.Fatalf("after the last frame: got %v, want io.EOF", err)
		}
	})
}

func TestAFrameBeyondTheLimitOrCutShortIsAnError(t *testing.T) {
	if _, err := ReadFrame(bytes.NewReader(AppendFrame(nil, make([]byte, 65))), 64, nil); !errors.Is(err, ErrOversized) {
		t.Errorf("one byte too many: got %v, want ErrOversized", err)
	}
	whole := AppendFrame(nil, []byte("body"))
	for n := 1; n < len(whole); n++ {
		if _, err := ReadFrame(bytes.NewReader(whole[:n]), 64, nil); !errors.Is(err, io.ErrUnexpectedEOF) && !(n == FrameHeader && errors.Is(err, io.EOF)) {
			t.Errorf("%d of %d bytes: got %v, want an unexpected end", n, len(whole), err)
		}
	}
}
