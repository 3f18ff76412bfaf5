package names

import (
	"encoding/binary"
	"time"

	"github.com/miekg/dns"

	"github.com/isthmus-mesh/isthmus/mesh"
)

const (
	// TTL is how long answers hold: as short as that of CoreDNS for services, as another question costs nothing
	// that leaves the pod. An address that was given back is nobody's for ten minutes (controller/vip).
	TTL = 5 * time.Second
	// negativeTTL is how long one holds that says that there is none: a service that is
	// exported now is found soon.
	negativeTTL = 2 * time.Second
)

// replyTo writes a judgement that answers q; serial is of the SOA, size how long it may be. A
// reply that is too long says so: the client asks again by TCP.
func replyTo(q *query, j judgement, serial uint32, size int) []byte {
	m := message(q, j.rcode)
	m.Authoritative = j.rcode != dns.RcodeServerFailure
	switch {
	case q.edns && q.version > 0:
		m.Rcode, m.Authoritative = dns.RcodeBadVers, false
	case j.rcode == dns.RcodeServerFailure:
		explain(m, dns.ExtendedErrorCodeNotReady, "no gateway of this network has said yet whether this name exists")
	default:
		if !j.empty {
			j.fill(m, q)
		}
		if len(m.Answer) == 0 {
			m.Ns = []dns.RR{soa(j.zone, serial)}
		}
	}
	return pack(m, q, size)
}

// fill adds the records that were asked for.
func (j judgement) fill(m *dns.Msg, q *query) {
	asked := func(kind uint16) bool { return q.kind == kind || q.kind == dns.TypeANY }
	if j.port == nil {
		m.Answer = j.entry.records(q.name, asked(dns.TypeA), asked(dns.TypeAAAA))
		return
	}
	if !asked(dns.TypeSRV) {
		return
	}
	host := dns.Fqdn(j.asked)
	m.Answer = []dns.RR{&dns.SRV{Hdr: head(q.name, dns.TypeSRV, TTL), Weight: 100, Port: j.port.Service, Target: host}}
	m.Extra = append(j.entry.records(host, true, true), m.Extra...)
}

// records are those of name for the families that are wanted.
func (e entry) records(name string, four, six bool) (out []dns.RR) {
	for _, a := range e.addresses {
		switch a = a.Unmap(); {
		case a.Is4() && four:
			out = append(out, &dns.A{Hdr: head(name, dns.TypeA, TTL), A: a.AsSlice()})
		case a.Is6() && six:
			out = append(out, &dns.AAAA{Hdr: head(name, dns.TypeAAAA, TTL), AAAA: a.AsSlice()})
		}
	}
	return out
}

func head(name string, kind uint16, ttl time.Duration) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: uint32(ttl / time.Second)}
}

// soa says how long what does not exist does not (RFC 2308).
func soa(zone string, serial uint32) dns.RR {
	zone = dns.Fqdn(zone)
	return &dns.SOA{Hdr: head(zone, dns.TypeSOA, negativeTTL), Ns: "ns." + zone, Mbox: "hostmaster." + zone,
		Serial: serial, Refresh: 60, Retry: 10, Expire: 600, Minttl: uint32(negativeTTL / time.Second)}
}

func serialOf(s *mesh.Snapshot) uint32 { return uint32(s.Revision) }

// message begins a reply to q.
func message(q *query, rcode int) *dns.Msg {
	m := &dns.Msg{Compress: true}
	m.Id, m.Response, m.Opcode, m.Rcode = q.id(), true, q.opcode(), rcode
	m.RecursionDesired, m.RecursionAvailable, m.CheckingDisabled = q.wanted(), true, q.raw[3]&0x10 != 0
	m.Question = []dns.Question{{Name: q.name, Qtype: q.kind, Qclass: q.class}}
	if q.edns {
		o := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
		o.SetUDPSize(maxUDP)
		m.Extra = []dns.RR{o}
	}
	return m
}

// maxWhy is how long an explanation may be: it has to fit beside the question.
const maxWhy = 160

// explain adds why to a reply to a client that knows EDNS (RFC 8914).
func explain(m *dns.Msg, code uint16, why string) {
	if o := m.IsEdns0(); o != nil {
		o.Option = append(o.Option, &dns.EDNS0_EDE{InfoCode: code, ExtraText: why[:min(len(why), maxWhy)]})
	}
}

// failed is the answer to a query that somebody else has not answered.
func failed(q *query, code uint16, why string, size int) []byte {
	if len(q.question) == 0 {
		return bare(q.raw, dns.RcodeServerFailure)
	}
	m := message(q, dns.RcodeServerFailure)
	explain(m, code, why)
	return pack(m, q, size)
}

func pack(m *dns.Msg, q *query, size int) []byte {
	m.Truncate(size)
	b, err := m.Pack()
	if err != nil { // a name of discovery's that DNS cannot have
		return bare(q.raw, dns.RcodeServerFailure)
	}
	return b
}

// bare is an answer to a message of which only the header is understood.
func bare(raw []byte, rcode int) []byte {
	b := make([]byte, headerSize)
	copy(b, raw[:2])
	b[2] = 0x80 | raw[2]&0x79 // opcode, and whether recursion is wanted
	b[3] = 0x80 | byte(rcode)
	return b
}

// sizeFor is how long an answer of ours by UDP may be.
func sizeFor(q *query) int { return min(q.size, maxUDP) }

// prefixed returns a message as it goes over TCP.
func prefixed(b []byte) []byte {
	return append(binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(b)), uint16(len(b))), b...)
}
