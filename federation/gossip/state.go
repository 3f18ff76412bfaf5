package gossip

import (
	"bytes"
	"compress/flate"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/peer"
)

const (
	stateVersion = 1
	maxState     = 16 << 20 // bytes of a full state, unpacked
	maxEnvelopes = 65_536   // in one message

	// chunkBytes is where a state of many records is split into envelopes.
	chunkBytes = 256 << 10
)

// ownState is this gateway's full state as last signed: one or a few envelopes
// instead of one per edge.
type ownState struct {
	mu        sync.Mutex
	envelopes []*federationpb.Envelope
	signed    time.Time
	notAfter  time.Time // of the SVID that signed
}

// state is what an exchange of full state sends: our own word, signed lately,
// and the newest envelopes of everybody else.
func (f *Federation) state() []byte {
	now := time.Now()
	envelopes := append(f.ownEnvelopes(now), f.archive.current(now, f.cfg.Ledger.TTL())...)
	b, err := packState(envelopes)
	if err != nil {
		f.cfg.Log.Error().Err(err).Msg("federation state not sent")
		return nil
	}
	f.cfg.Metrics.Bytes.WithLabelValues("stream").Add(float64(len(b)))
	return b
}

// ownEnvelopes signs the full state anew if it has changed or is older than a
// refresh, and stamps it by that.
func (f *Federation) ownEnvelopes(now time.Time) []*federationpb.Envelope {
	f.own.mu.Lock()
	defer f.own.mu.Unlock()
	if f.journal.isChanged() || now.Sub(f.own.signed) >= f.cfg.RefreshInterval || !now.Before(f.own.notAfter) {
		if err := f.signState(now); err != nil {
			f.cfg.Log.Warn().Err(err).Msg("federation state not signed")
			return nil
		}
	}
	out := make([]*federationpb.Envelope, len(f.own.envelopes))
	for i, e := range f.own.envelopes {
		out[i] = aged(e, now.Sub(f.own.signed))
	}
	return out
}

func (f *Federation) signState(now time.Time) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	svid, err := f.cfg.Identity.Get(ctx, f.cfg.Self)
	if err != nil {
		return err
	}
	records := f.journal.full(now)
	f.cfg.Ledger.MergeAll(records)
	f.own.envelopes = nil
	for _, part := range federation.Split(records, chunkBytes) {
		e, err := seal(svid, part)
		if err != nil {
			return err
		}
		f.own.envelopes = append(f.own.envelopes, e)
	}
	f.own.signed, f.own.notAfter = now, svid.NotAfter()
	return nil
}

// packState is a version byte and the deflated Envelopes: hostnames repeat.
func packState(envelopes []*federationpb.Envelope) ([]byte, error) {
	plain, err := marshalEnvelopes(envelopes...)
	if err != nil {
		return nil, fmt.Errorf("pack state: %w", err)
	}
	if len(plain) > maxState {
		return nil, fmt.Errorf("pack state of %d bytes, limit %d: %w", len(plain), maxState, federation.ErrTooLarge)
	}
	var out bytes.Buffer
	out.WriteByte(stateVersion)
	w, err := flate.NewWriter(&out, flate.BestSpeed)
	if err != nil {
		return nil, fmt.Errorf("pack state: %w", err)
	}
	if _, err = w.Write(plain); err == nil {
		err = w.Close()
	}
	return out.Bytes(), err
}

func unpackState(b []byte) ([]*federationpb.Envelope, error) {
	if len(b) == 0 || b[0] != stateVersion {
		return nil, &peer.MalformedError{Cause: errors.New("state of an unknown version")}
	}
	plain, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(b[1:])), maxState+1))
	if err != nil {
		return nil, &peer.MalformedError{Cause: fmt.Errorf("inflate state: %w", err)}
	}
	if len(plain) > maxState {
		return nil, fmt.Errorf("unpack state, limit %d bytes: %w", maxState, federation.ErrTooLarge)
	}
	return unmarshalEnvelopes(plain)
}

func unmarshalEnvelopes(b []byte) ([]*federationpb.Envelope, error) {
	var m federationpb.Envelopes
	if err := proto.Unmarshal(b, &m); err != nil {
		return nil, &peer.MalformedError{Cause: err}
	}
	if n := len(m.GetEnvelopes()); n > maxEnvelopes {
		return nil, fmt.Errorf("message of %d envelopes, limit %d: %w", n, maxEnvelopes, federation.ErrTooLarge)
	}
	return m.GetEnvelopes(), nil
}
