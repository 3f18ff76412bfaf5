package pool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/internal/simnet"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// stockPeer has the windows of ztunnel, 4 and 16 MiB, and gives each back in halves, as
// the h2 crate and nghttp2 do. Applications behind slow:1 read rate bytes/s each.
type stockPeer struct {
	rate   int
	mu     sync.Mutex
	fr     *http2.Framer
	conn   int // consumed and not given back
	read   int // by all slow applications
	queued map[uint32]int
}

func (p *stockPeer) consumed(id uint32, n int, stream *int) {
	p.conn += n
	*stream += n
	if p.conn >= 8<<20 {
		p.fr.WriteWindowUpdate(0, uint32(p.conn))
		p.conn = 0
	}
	if *stream >= 2<<20 {
		p.fr.WriteWindowUpdate(id, uint32(*stream))
		*stream = 0
	}
}

func (p *stockPeer) serve(ctx context.Context, c net.Conn) {
	defer c.Close()
	io.ReadFull(c, make([]byte, len(http2.ClientPreface)))
	p.fr = http2.NewFramer(c, c)
	p.fr.SetMaxReadFrameSize(1 << 20)
	p.fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	p.queued = map[uint32]int{}
	p.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 4 << 20}, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 200})
	p.fr.WriteWindowUpdate(0, 16<<20-65535)
	var hb bytes.Buffer
	enc := hpack.NewEncoder(&hb)
	slow, own := map[uint32]bool{}, map[uint32]*int{}
	for {
		f, err := p.fr.ReadFrame()
		if err != nil {
			return
		}
		p.mu.Lock()
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				p.fr.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				p.fr.WritePing(true, f.Data)
			}
		case *http2.MetaHeadersFrame:
			id := f.StreamID
			hb.Reset()
			enc.WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
			p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: hb.Bytes(), EndHeaders: true})
			own[id] = new(int)
			if f.PseudoValue("authority") == "slow:1" {
				slow[id] = true
				go func() {
					for ctx.Err() == nil {
						time.Sleep(50 * time.Millisecond)
						p.mu.Lock()
						n := min(p.queued[id], p.rate/20)
						p.queued[id] -= n
						p.read += n
						p.consumed(id, n, own[id])
						p.mu.Unlock()
					}
				}()
			}
		case *http2.DataFrame:
			if id := f.StreamID; slow[id] {
				p.queued[id] += int(f.Length)
			} else {
				p.consumed(id, int(f.Length), own[id])
				p.fr.WriteData(id, false, f.Data())
			}
		}
		p.mu.Unlock()
	}
}

// Uploads that stock peers read all the time, if no faster than they are meant to be,
// are no reason to refuse anybody.
func TestUploadsThatAStockPeerReadsSlowlyRefuseNobody(t *testing.T) {
	for _, rate := range []int{100_000} {
		for _, uploads := range []int{24} {
			t.Run(fmt.Sprint(rate, " ", uploads), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ctx, cancel := context.WithCancel(t.Context())
					var peers []*stockPeer
					dial := func(context.Context) (*hbone.Session, error) {
						x, y := simnet.Pair(simnet.Options{Delay: 5 * time.Millisecond})
						p := &stockPeer{rate: rate}
						peers = append(peers, p)
						go p.serve(ctx, y)
						return hbone.StartClient(pipeTransport{x}, hbone.DefaultConfig())
					}
					p := New(Config{})
					var all []*hbone.Stream
					refused := 0
					for range uploads {
						st, _, err := p.Open(ctx, Key{}, dial, &hbone.Request{Authority: "slow:1"})
						if err != nil {
							refused++
							time.Sleep(5 * time.Second)
							continue
						}
						all = append(all, st)
						go flood(st)
						time.Sleep(5 * time.Second)
					}
					read := func() (n int) {
						for _, p := range peers {
							p.mu.Lock()
							n += p.read
							p.mu.Unlock()
						}
						return n
					}
					halted, other, slowest, most := 0, 0, time.Duration(0), time.Duration(0)
					before, began := read(), time.Now()
					for range 30 {
						time.Sleep(1100 * time.Millisecond)
						for _, st := range all {
							most = max(most, st.Session().Availability(time.Now()).Halted)
						}
						at := time.Now()
						st, _, err := p.Open(ctx, Key{}, dial, &hbone.Request{Authority: "echo:1"})
						if errors.Is(err, ErrHalted) {
							halted++
							continue
						}
						if err != nil {
							other++
							continue
						}
						st.SetDeadline(time.Now().Add(time.Minute))
						st.Write([]byte("x"))
						if _, err := io.ReadFull(st, make([]byte, 1)); err != nil {
							other++
						}
						slowest = max(slowest, time.Since(at))
						st.Reset(0)
						st.Close()
					}
					per := float64(read()-before) / time.Since(began).Seconds() / float64(max(1, len(all)))
					s := p.Stats()
					t.Logf("%d of %d uploads open, each read at %.0f B/s; sessions %d, dials %d, longest halt %v; of 30 connections %d ErrHalted, %d other, slowest %v", len(all), uploads, per, s.Sessions, s.Dials, most, halted, other, slowest)
					if halted+refused > 0 {
						t.Errorf("%d of 30 connections and %d of %d uploads were refused, though each upload is read at %.0f of %d B/s", halted, refused, uploads, per, rate)
					}
					for _, st := range all {
						st.Reset(0)
						st.Close()
					}
					p.Close()
					cancel()
					time.Sleep(5 * time.Minute)
				})
			})
		}
	}
}
