package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/federation/linkcard"
	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
)

// pair are two clusters, east and west, by contexts e and w of one kubectl, which keeps what is
// applied. A third context, other, leads to west too.
type pair struct {
	t            *testing.T
	program, dir string
}

func newPair(t *testing.T) *pair {
	t.Helper()
	t.Chdir(t.TempDir())
	p := &pair{t: t, dir: t.TempDir()}
	p.program = filepath.Join(p.dir, "kubectl")
	script := "#!/bin/sh\nfor last; do :; done\n[ \"$last\" = other ] && last=w\nd=" + p.dir + "/$last\n" +
		"[ -d $d ] || { [ \"$1\" = config ] && { printf 'e\\nw\\nother\\n'; exit 0; }; echo \"error: context \\\"$last\\\" does not exist\" >&2; exit 1; }\n" +
		"case $1 in get) [ ! -f $d/$2-$3 ] || cat $d/$2-$3 ;; apply) echo >> $d/writes; cat > $d/applied; echo configmap/isthmus-networks applied ;; esac\n"
	if err := os.WriteFile(p.program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	for context, network := range map[string]string{"e": "east", "w": "west"} {
		code, text, errs := isthmus(t, "init", "--network", network, "--trust-domain", network+".local")
		if code != exitOK {
			t.Fatal(errs)
		}
		p.has(context, text)
	}
	p.has("e", service("LoadBalancer", "status: {loadBalancer: {ingress: [{ip: 198.51.100.1}]}}\n"))
	p.has("w", service("LoadBalancer", balanced))
	return p
}

// has gives a cluster these objects.
func (p *pair) has(context, manifests string) {
	p.t.Helper()
	program, _ := storingKubectl(p.t, manifests)
	if err := os.Remove(program); err != nil {
		p.t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(p.dir, context), 0o700); err != nil {
		p.t.Fatal(err)
	}
	files, err := os.ReadDir(filepath.Dir(program))
	if err != nil {
		p.t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(filepath.Dir(program), f.Name()))
		if err == nil {
			err = os.WriteFile(filepath.Join(p.dir, context, f.Name()), b, 0o600)
		}
		if err != nil {
			p.t.Fatal(err)
		}
	}
}

// runs has the clusters keep what a command line applies.
func (p *pair) runs(line string) (code int, errs string) {
	p.t.Helper()
	code, _, errs = isthmus(p.t, append(strings.Fields(line), "--kubectl", p.program)...)
	for _, context := range []string{"e", "w"} {
		if b, err := os.ReadFile(filepath.Join(p.dir, context, "applied")); err == nil {
			p.has(context, string(b))
			os.Remove(filepath.Join(p.dir, context, "applied"))
		}
	}
	return code, errs
}

// writes is how often anything was applied.
func (p *pair) writes() int {
	n := 0
	for _, context := range []string{"e", "w"} {
		b, _ := os.ReadFile(filepath.Join(p.dir, context, "writes"))
		n += len(b)
	}
	return n
}

// dials is where east dials west.
func (p *pair) dials() []string {
	p.t.Helper()
	l, err := openLinking(p.t.Context(), kubectl{program: p.program}.of("e"))
	if err != nil {
		p.t.Fatal(err)
	}
	return addressesOf(l.known, "west")
}

const link = "link --contexts e,w --apply "

// Addresses that somebody has written stay until somebody else is written, or says that they go;
// those of clusters are followed; where a cluster says none, what is known stays. Each is said.
func TestLinkKeepsWrittenAddressesAndSaysWhatBecomesOfOthers(t *testing.T) {
	p := newPair(t)
	none := service("LoadBalancer", "")
	for i, x := range []struct {
		service, args string
		dials         string
		says          []string // nothing else
	}{
		{"", "", "203.0.113.7:15008 gw.example.com:15008", nil},
		{"", "", "203.0.113.7:15008 gw.example.com:15008", nil},
		{none, "", "203.0.113.7:15008 gw.example.com:15008", []string{`context "e": network "west" says no address now: it is dialed at 203.0.113.7:15008, gw.example.com:15008 as before`}},
		{service("LoadBalancer", "status: {loadBalancer: {ingress: [{ip: 203.0.113.8}]}}\n"), "", "203.0.113.8:15008", []string{`is dialed at 203.0.113.8:15008 from now on, and no longer at 203.0.113.7:15008, gw.example.com:15008`}},
		{"", "--address west=192.0.2.1,west=192.0.2.2:443", "192.0.2.1:15008 192.0.2.2:443", []string{`is dialed at 192.0.2.1:15008, 192.0.2.2:443 from now on, and no longer at 203.0.113.8:15008`}},
		{"", "", "192.0.2.1:15008 192.0.2.2:443", []string{`network "west" is dialed at 192.0.2.1:15008, 192.0.2.2:443, as --address said, though it says 203.0.113.8:15008: --address west= takes that`}},
		{none, "", "192.0.2.1:15008 192.0.2.2:443", nil},
		{none, "--wait 1s", "192.0.2.1:15008 192.0.2.2:443", nil},
		{service("LoadBalancer", balanced), "--address west=192.0.2.3", "192.0.2.3:15008", []string{"192.0.2.3:15008 from now on"}},
		{"", "--address east=192.0.2.4", "192.0.2.3:15008", []string{"as --address said", "network \"east\" is dialed at 192.0.2.4:15008 from now on"}},
		{"", "--address west= --address east=", "203.0.113.7:15008 gw.example.com:15008", []string{`network "west" is dialed at 203.0.113.7:15008, gw.example.com:15008 from now on`, `network "east" is dialed at 198.51.100.1:15008 from now on`}},
		{service("LoadBalancer", "status: {loadBalancer: {ingress: [{ip: 127.0.0.1}]}}\n"), "", "127.0.0.1:15008", []string{"from now on", `network "west" says that it is dialed at 127.0.0.1:15008: that is a loopback address`}},
		{service("LoadBalancer", "status: {loadBalancer: {ingress: [{ip: 198.51.100.1}]}}\n"), "", "198.51.100.1:15008", []string{"198.51.100.1:15008 from now on", `context "e": 198.51.100.1:15008 is an address of networks "east" and "west"`, `context "w": 198.51.100.1:15008 is an address of networks`}},
	} {
		if x.service != "" {
			p.has("w", x.service)
		}
		code, errs := p.runs(link + x.args)
		if got := strings.Join(p.dials(), " "); code != exitOK || got != x.dials || strings.Count(errs, "\n") != len(x.says) {
			t.Errorf("%d: link %s exits with %d; west is dialed at %s, want %s; it says\n%s\nwant %q", i, x.args, code, got, x.dials, errs, x.says)
		}
		wantIn(t, errs, x.says...)
	}
	if code, errs := p.runs("unlink --contexts e,w --apply"); code != exitOK || p.dials() != nil {
		t.Errorf("unlink exits with %d, %s; west is dialed at %v", code, errs, p.dials())
	}
	p.has("w", none)
	code, errs := p.runs(link)
	if code != exitOK || strings.Count(errs, "\n") != 1 {
		t.Errorf("%d, %s", code, errs)
	}
	wantIn(t, errs, `network "west": it has no address`, "--wait 5m", "--address west=ADDRESS")
}

// Under random links a cluster dials where a plain account of who has said what leads: the last
// address written since the last NETWORK=, else the last that the cluster said, else what there was.
func TestWhereANetworkIsDialledByAPlainAccount(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 8))
		own := linkcard.Card{Network: "east"}
		l := &linking{card: own}
		var want []string
		hand := false
		draw := func(kind string) []string { return []string{fmt.Sprintf("%s-%d.example.com:15008", kind, r.IntN(3))} }
		for step := range 40 {
			d := dialling{network: "west", known: want, byHand: hand}
			if r.IntN(2) == 0 {
				d.said = draw("lb")
			}
			switch r.IntN(4) {
			case 0:
				d.given, d.written = draw("hand"), true
			case 1:
				d.written = true
			}
			got, byHand := d.decide()
			if d.written {
				hand = len(d.given) > 0
			}
			switch {
			case len(d.given) > 0:
				want = d.given
			case !hand && len(d.said) > 0:
				want = d.said
			}
			if len(got) == 0 {
				got = l.dialled("west")
			}
			l.known = keyfile.File{Networks: []keyfile.Network{{Name: "west", Link: keyfile.Link{Addresses: got}}}}
			if !slices.Equal(got, want) || byHand != hand {
				t.Fatalf("seed %d, step %d: %+v is dialed at %v, by hand %t; want %v, %t", seed, step, d, got, byHand, want, hand)
			}
			moved := len(d.known) > 0 && !same(d.known, want)
			if said := strings.Join(d.notes(got), "\n"); moved != strings.Contains(said, "from now on") {
				t.Fatalf("seed %d, step %d: from %v to %v it says %q", seed, step, d.known, want, said)
			}
		}
	}
}

func (l *linking) dialled(network string) []string { return addressesOf(l.known, network) }

// What is refused is refused in one line, before anything is waited for and before anything is written.
func TestLinkRefusesInOneLine(t *testing.T) {
	p := newPair(t)
	p.has("w", service("LoadBalancer", ""))
	if err := os.WriteFile("west.card", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string][]string{
		link + "--contexts e":                       {`"e" is there twice`},
		"link --contexts e,,w --apply":              {"an entry is empty", "A,B"},
		"link --contexts e, w --apply":              {"an entry is empty", "without a space"},
		"link --contexts e w --apply":               {"link card w: there is no such file", "--contexts e,w"},
		"link --contexts w,other --apply --wait 1s": {`context "w" and context "other" are the same cluster`, `"west"`},
		"link --contexts e,wx --apply":              {`context "wx"`, `did you mean "w"?`},
		"unlink --contexts e,e --apply":             {`"e" is there twice`},
		"unlink --contexts e,nobody --apply":        {`context "nobody"`, "known are e, w, other"},
		link + "--address west=198.51.100.1":        {`"east" and "west"`},
	} {
		code, errs := p.runs(line)
		lines := strings.Count(errs, "\n")
		if code == exitOK || lines > 1 && !strings.Contains(errs, "for usage.\n") {
			t.Errorf("isthmus %s: exit %d, %d lines:\n%s", line, code, lines, errs)
		}
		wantIn(t, errs, want...)
	}
	// A refusal that waiting does not mend comes before it.
	if err := os.RemoveAll("west"); err != nil {
		t.Fatal(err)
	}
	_, text, _ := isthmus(t, "init", "--network", "west", "--trust-domain", "east.local")
	p.has("w", text)
	code, errs := p.runs(link + "--wait 1s")
	if code != exitFinding || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, "--share-trust-domain") {
		t.Errorf("one trust domain: %d, %s", code, errs)
	}
	if n := p.writes(); n != 0 {
		t.Errorf("%d writes by links that are refused", n)
	}
	// A space after a comma inside one argument does no harm.
	if code, _, errs := isthmus(t, "link", "--contexts", "e, w", "--apply", "--share-trust-domain", "--kubectl", p.program); code != exitOK || p.writes() != 2 {
		t.Errorf("%d, %d writes, %s", code, p.writes(), errs)
	}
}
