package interop

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/isthmus-mesh/isthmus/hbone"
	"golang.org/x/net/http2"
)

// tape is what went over one TLS connection with a stock peer, decrypted, in the
// order in which this process read and wrote it.
type tape struct {
	mu      sync.Mutex
	entries []entry
}

// entry is one read of what the stock peer sent, or one write of ours.
type entry struct {
	stock bool
	bytes []byte
}

func (t *tape) add(stock bool, b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.entries = append(t.entries, entry{stock, bytes.Clone(b)})
}

// taped is a transport that is recorded.
type taped struct {
	*hbone.TLSTransport
	tape *tape
}

func (t taped) Read(p []byte) (int, error) {
	n, err := t.TLSTransport.Read(p)
	if n > 0 {
		t.tape.add(true, p[:n])
	}
	return n, err
}

func (t taped) WriteBurst(p []byte) error {
	t.tape.add(false, p)
	return t.TLSTransport.WriteBurst(p)
}

// text is the tape as hbone/testdata/stock has it: "stock" or "ours" begins a
// read or write, and each line behind it is a frame that ended there, with type,
// flags, stream and payload. The client's preface is a line of its own.
func (t *tape) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	parts := map[bool][]byte{}
	for _, e := range t.entries {
		p := append(parts[e.stock], e.bytes...)
		fmt.Fprintln(&b, map[bool]string{true: "stock", false: "ours"}[e.stock])
		if rest, ok := bytes.CutPrefix(p, []byte(http2.ClientPreface)); ok {
			fmt.Fprintln(&b, "PREFACE")
			p = rest
		}
		for {
			frame, rest := cutFrame(p)
			if frame == nil {
				break
			}
			h, _ := http2.ReadFrameHeader(bytes.NewReader(frame))
			fmt.Fprintf(&b, "%v %02x %d %s\n", h.Type, uint8(h.Flags), h.StreamID, payload(frame[9:]))
			p = rest
		}
		parts[e.stock] = bytes.Clone(p)
	}
	return b.String()
}

func cutFrame(p []byte) (frame, rest []byte) {
	if len(p) < 9 {
		return nil, p
	}
	n := 9 + int(p[0])<<16 + int(p[1])<<8 + int(p[2])
	if len(p) < n {
		return nil, p
	}
	return p[:n], p[n:]
}

// payload is quoted if it is text, hexadecimal otherwise, "-" if there is none.
func payload(p []byte) string {
	if len(p) == 0 {
		return "-"
	}
	for _, c := range p {
		if c < ' ' || c > '~' {
			return hex.EncodeToString(p)
		}
	}
	return strconv.Quote(string(p))
}

// save writes the tape among the fixtures if RECORD is set.
func (t *tape) save(name, what string) error {
	if os.Getenv("RECORD") == "" {
		return nil
	}
	head := "# " + what + "\n# Recorded with ztunnel 62d82653; see integration/README.md.\n"
	return os.WriteFile(filepath.Join(root, "hbone/testdata/stock", name+".txt"), []byte(head+t.text()), 0o644)
}
