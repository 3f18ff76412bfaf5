package keyfile

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/networkkey"
)

func TestKeysSurviveTheirFilesAndARotation(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "west")
	made, err := Init(dir, "west", rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if i, err := os.Stat(filepath.Join(dir, KeyFile)); err != nil || i.Mode().Perm() != 0o600 {
		t.Errorf("key file: %v, %v; want mode 0600", i.Mode(), err)
	}
	opened, err := Open(dir)
	if err != nil || !reflect.DeepEqual(opened, made) {
		t.Fatalf("got %v, %v; want %v", opened, err, made)
	}
	if _, err := Init(dir, "west", rand.Reader); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second init: got %v, want ErrExist", err)
	}
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	if _, err := Finish(dir, now); !errors.Is(err, ErrNotRotating) {
		t.Errorf("got %v, want ErrNotRotating", err)
	}
	both, err := Rotate(dir, rand.Reader)
	if err != nil || both.Key.Public() != made.Key.Public() || len(both.Public()) != 2 {
		t.Fatalf("got %v, %v", both, err)
	}
	if _, err := Rotate(dir, rand.Reader); !errors.Is(err, ErrRotating) {
		t.Errorf("got %v, want ErrRotating", err)
	}
	known, err := ReadKnown(filepath.Join(dir, ListFile))
	if err != nil || !reflect.DeepEqual(known, both.Known()) {
		t.Errorf("the list has %v, %v; want %v", known, err, both.Known())
	}
	after, err := Finish(dir, now)
	if err != nil || after.Key.Public() != both.Next.Public() {
		t.Fatalf("got %v, %v", after, err)
	}
	if opened, err = Open(dir); err != nil || !reflect.DeepEqual(opened, after) {
		t.Errorf("got %v, %v; want %v", opened, err, after)
	}
	// Gateways that the old key has certified are believed until it is forgotten.
	if known, err = ReadKnown(filepath.Join(dir, ListFile)); err != nil || !reflect.DeepEqual(known["west"], []networkkey.Public{after.Key.Public(), made.Key.Public()}) {
		t.Errorf("after the finish the list has %v, %v; want the new key and the old one", known, err)
	}
	if _, err := Rotate(dir, rand.Reader); !errors.Is(err, ErrRotating) {
		t.Errorf("rotated with three keys: got %v, want ErrRotating", err)
	}
	// The last certificate of the old key may end a day after the finish.
	early := now.Add(networkkey.MaxLifetime - time.Second)
	if _, err := Forget(dir, early, false); !errors.Is(err, ErrOldKeyInUse) || !strings.Contains(err.Error(), "wait until 2026-03-02T12:00:00Z") {
		t.Errorf("forgotten too early: got %v, want ErrOldKeyInUse and the time", err)
	}
	if known, err = ReadKnown(filepath.Join(dir, ListFile)); err != nil || len(known["west"]) != 2 {
		t.Errorf("the list has %v, %v; want both keys still", known, err)
	}
	if what, want := after.Remaining(), "not before 2026-03-02T12:00:00Z: isthmus network rotate --dir "+dir+" --forget-old"; !strings.Contains(what, want) {
		t.Errorf("got %q, want %q in it", what, want)
	}
	last, err := Forget(dir, now.Add(networkkey.MaxLifetime), false)
	if err != nil || last.Old != nil || last.Key.Public() != after.Key.Public() {
		t.Fatalf("got %v, %v", last, err)
	}
	if known, err = ReadKnown(filepath.Join(dir, ListFile)); err != nil || len(known["west"]) != 1 {
		t.Errorf("the list has %v, %v; want the key that signs alone", known, err)
	}
	if _, err := os.Stat(filepath.Join(dir, FinishedFile)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the time of the finish is kept: %v", err)
	}
	if _, err := Forget(dir, now, true); !errors.Is(err, ErrNoOldKey) {
		t.Errorf("got %v, want ErrNoOldKey", err)
	}
	if _, err := Rotate(dir, rand.Reader); err != nil {
		t.Errorf("the next rotation: %v", err)
	}
}

func TestAnOldKeyWhoseTimeIsLostIsForgottenByForceAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "west")
	if _, err := Init(dir, "west", rand.Reader); err != nil {
		t.Fatal(err)
	}
	if _, err := Rotate(dir, rand.Reader); err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	if _, err := Finish(dir, now); err != nil {
		t.Fatal(err)
	}
	finished := filepath.Join(dir, FinishedFile)
	if err := os.WriteFile(finished, []byte("yesterday"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), finished+`: "yesterday": want the time`) {
		t.Errorf("got %v", err)
	}
	if err := os.Remove(finished); err != nil {
		t.Fatal(err)
	}
	if d, err := Forget(dir, now.Add(networkkey.MaxLifetime), false); !errors.Is(err, ErrNoOldKey) || !strings.Contains(d.Remaining(), "(or finished, if it is a key that has signed)") {
		t.Errorf("got %v, %q; want ErrNoOldKey, and what is lost", err, d.Remaining())
	}
	if d, err := Forget(dir, now, true); err != nil || len(d.Public()) != 1 || d.Step() != Settled {
		t.Errorf("with force: got %s, %d keys, %v", d.Step(), len(d.Public()), err)
	}
}

func TestKnownNetworksSurviveTheirFile(t *testing.T) {
	a, _ := networkkey.Generate(rand.Reader)
	b, _ := networkkey.Generate(rand.Reader)
	want := networkkey.Known{"west": {a.Public()}, "no": {b.Public()}} // an unquoted no is a bool to YAML 1.1
	got, err := ParseKnown("known.yaml", FormatKnown(want))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
}

func TestMistakesNameFileFieldAndRemedy(t *testing.T) {
	k, _ := networkkey.Generate(rand.Reader)
	key := k.Public().String()
	for _, c := range []struct{ in, want string }{
		{"networks: [{name: west, keys: [abc]}]", `known.yaml:1: networks[0].keys[0]: network key "abc": want ed25519:`},
		{"networks:\n- name: west\n  keys: [" + key + "]\n- name: west\n  keys: []", `known.yaml:4: networks[1].name: "west" is listed already`},
		{"networks: [{name: west, kyes: []}]", "kyes"},
		{"networks: [{name: west}]", `network "west" has 0 keys`},
		{"", "known.yaml"},
	} {
		if _, err := ParseKnown("known.yaml", []byte(c.in)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got %v, want an error with %q", c.in, err, c.want)
		}
	}
	dir := t.TempDir()
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "make one with `isthmus network init") {
		t.Errorf("got %v", err)
	}
	other, _ := networkkey.Generate(rand.Reader)
	for want, known := range map[string]networkkey.Known{
		"lists 0 networks: want the one whose key key.pem is: restore its entry":                                                              {},
		"lists 2 networks: want the one whose key key.pem is: put other networks into a file of their own and name it in federation.networks": {"east": {k.Public()}, "west": {other.Public()}},
	} {
		list := FormatKnown(known)
		if len(known) == 0 {
			list = []byte("networks: []\n")
		}
		if err := os.WriteFile(filepath.Join(dir, ListFile), list, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Rotate(dir, rand.Reader); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
	path := filepath.Join(dir, "key.pem")
	for in, want := range map[string]string{
		"nothing": "want exactly one PEM block",
		"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n": "key.pem",
	} {
		if err := os.WriteFile(path, []byte(in), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadKey(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want an error with %q", in, err, want)
		}
	}
}

func FuzzParseKnown(f *testing.F) {
	k, _ := networkkey.Generate(rand.Reader)
	f.Add(FormatKnown(networkkey.Known{"west": {k.Public()}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		known, err := ParseKnown("known.yaml", b)
		if err != nil {
			return
		}
		again, err := ParseKnown("known.yaml", FormatKnown(known))
		if err != nil || len(again) != len(known) {
			t.Fatalf("got %v, %v; want %v", again, err, known)
		}
	})
}

func TestLinksBoundWhatANetworkMayClaim(t *testing.T) {
	const keys = "keys: [\"ed25519:11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\"]"
	path := filepath.Join(t.TempDir(), "networks.yaml")
	read := func(link string) (map[string]Link, error) {
		if err := os.WriteFile(path, []byte("networks:\n  - {name: west, "+keys+link+"}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		known, links, err := ReadLinks(path)
		if again, kerr := ReadKnown(path); (kerr == nil) != (err == nil) || len(again) != len(known) {
			t.Errorf("%q: as known networks alone: %v, %v", link, again, kerr)
		}
		return links, err
	}
	links, err := read(", trustDomains: [west.example], namespaces: [a, b], maxCapacity: 7, gatewayServiceAccount: mesh/gate")
	if l := links["west"]; err != nil || l.TrustDomains[0] != "west.example" || len(l.Namespaces) != 2 || l.MaxCapacity != 7 || l.GatewayServiceAccount != "mesh/gate" {
		t.Errorf("read %+v, %v", l, err)
	}
	if links, err := read(""); err != nil || len(links) != 1 {
		t.Errorf("without bounds: %+v, %v", links, err)
	}
	for link, want := range map[string]string{
		", trustDomains: ['spiffe://west']": "or leave the key out", ", namespaces: ['']": "write one such as default",
		", gatewayServiceAccount: gate": "write namespace/name", ", maxCapacity: -1": `maxCapacity: "-1": want a whole number`, ", namespace: [a]": "namespaces",
	} {
		if _, err := read(link); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want an error with %q", link, err, want)
		}
	}
}

func TestARotationKeepsWhatOperatorsHaveWritten(t *testing.T) {
	for style, text := range map[string]string{
		"block": "# ours\nnetworks:\n  - name: west\n    # of the link\n    trustDomains: [west.example]\n    namespaces:\n      - a\n      - b # since May\n    maxCapacity: 7\n    gatewayServiceAccount: mesh/gate\n    keys:\n      - KEY # first\n# end\n",
		"flow":  "networks: [{name: west, keys: [KEY], trustDomains: [west.example], namespaces: [a, b], maxCapacity: 7, gatewayServiceAccount: mesh/gate}]\n",
	} {
		dir := filepath.Join(t.TempDir(), "west")
		made, err := Init(dir, "west", rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, ListFile)
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(text, "KEY", made.Key.Public().String())), 0o644); err != nil {
			t.Fatal(err)
		}
		want := Link{TrustDomains: []string{"west.example"}, Namespaces: []string{"a", "b"}, MaxCapacity: 7, GatewayServiceAccount: "mesh/gate"}
		check := func(step string, d Dir, err error, comments ...string) {
			t.Helper()
			if err != nil || !reflect.DeepEqual(d.Link, want) {
				t.Fatalf("%s, %s: link %+v, %v; want %+v", style, step, d.Link, err, want)
			}
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for name, text := range map[string][]byte{"the list": b, "what is shown": d.Format()} {
				known, links, err := parse(name, text)
				if err != nil || !reflect.DeepEqual(links["west"], want) || !reflect.DeepEqual(known, d.Known()) {
					t.Errorf("%s, %s: %s has %v, %+v, %v; want %v, %+v:\n%s", style, step, name, known, links["west"], err, d.Known(), want, text)
				}
			}
			for _, c := range comments {
				if style == "block" && strings.Count(string(b), c) != 1 {
					t.Errorf("%s: no %q in\n%s", step, c, b)
				}
			}
		}
		now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		d, err := Rotate(dir, rand.Reader)
		check("rotated", d, err, "# ours", "# of the link", "b # since May", made.Key.Public().String()+" # first", "# end")
		d, err = Finish(dir, now)
		check("finished", d, err, "# ours", "# of the link", "b # since May", made.Key.Public().String()+" # first", "# end")
		d, err = Forget(dir, now, true)
		check("forgotten", d, err, "# ours", "# of the link", "b # since May", "# end")
	}
}
