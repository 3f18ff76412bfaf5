package picker

import (
	"time"

	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/health/standing"
)

// Explain says of every pod of s whether a new connection may go there, and why.
func (p *Picker) Explain(s *Service, now time.Time) []standing.Verdict {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.alarms.Due(now) {
		s.refresh(m, now)
	}
	out := make([]standing.Verdict, 0, len(s.members))
	for i, m := range s.members {
		x := s.index.At(i)
		v := standing.Verdict{Kind: "pod", Name: m.pod.UID, Port: m.port.Key().Port, Weight: x.Weight, Part: s.index.Share(i), Open: m.port.Open()}
		v.In = v.Part > 0
		v.Causes = standing.OfCell([]standing.Cause{}, m.hop, now)
		if w, sick := p.Word(m.port.Key()); sick {
			v.Causes = append(v.Causes, standing.Cause{Word: standing.HeldReported, Reason: w.Reason, By: standing.Witness + w.Witness, Since: w.Since})
		}
		if since := p.doubtedSince(m); !since.IsZero() {
			v.Causes = append(v.Causes, standing.Cause{Word: standing.HeldDoubted, Since: since})
		}
		out = append(out, v)
	}
	return out
}

// Word returns what a witness says of a port; false if it is not out.
func (p *Picker) Word(k health.Key) (Word, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w, ok := p.sick[k]
	return w, ok
}

func (p *Picker) doubtedSince(m *member) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.marks[m.pod.Endpoint].doubted
}
