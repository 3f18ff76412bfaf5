package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
)

func TestNetworkKeyFromInitToTheEndOfItsRotation(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "west")
	shown := func() (s shownNetwork) {
		if err := json.Unmarshal([]byte(succeed(t, "network", "show", "--dir", dir, "-o", "json")), &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	out := succeed(t, "network", "init", "--network", "west", "--dir", dir)
	known, err := keyfile.ParseKnown("stdout", []byte(out)) // what is printed is what the other side pastes
	if err != nil || len(known["west"]) != 1 {
		t.Fatalf("init printed no file of known networks: %v, %v\n%s", known, err, out)
	}
	first := shown()
	if first.Network != "west" || first.Step != "settled" || len(first.Keys) != 1 || !first.Keys[0].Signs || first.Keys[0].Key != known["west"][0].String() {
		t.Errorf("got %+v", first)
	}
	code, _, errs := isthmus(t, "network", "rotate", "--dir", dir, "--finish")
	if code != exitFinding || !strings.Contains(errs, "begin one with `isthmus network rotate --dir "+dir+"`") {
		t.Errorf("finish before the beginning: exit %d, %s", code, errs)
	}
	wantIn(t, succeed(t, "network", "rotate", "--dir", dir), first.Keys[0].Key, "--finish")
	both := shown()
	wantIn(t, succeed(t, "network", "show", "--dir", dir), "# rotation offered: ", "isthmus network rotate --dir "+dir+" --finish")
	if both.Step != "offered" || len(both.Keys) != 2 || both.Keys[0] != first.Keys[0] || both.Keys[1].Signs {
		t.Errorf("got %+v", both)
	}
	finished := succeed(t, "network", "rotate", "--dir", dir, "--finish")
	wantIn(t, finished, both.Keys[1].Key, "not before ", "isthmus network rotate --dir "+dir+" --forget-old")
	if n := strings.Count(finished, "--forget-old"); n != 1 {
		t.Errorf("the next step is said %d times, want once:\n%s", n, finished)
	}
	if kept := shown(); kept.Step != "replaced" || len(kept.Keys) != 2 || !kept.Keys[0].Signs || kept.Keys[1].Key != first.Keys[0].Key || !kept.Keys[1].Old {
		t.Errorf("the old key is not listed any more: %+v", kept)
	}
	if code, _, errs := isthmus(t, "network", "rotate", "--dir", dir, "--forget-old"); code != exitFinding || !strings.Contains(errs, "--force") {
		t.Errorf("forgotten at once: exit %d, %s, want %d", code, errs, exitFinding)
	}
	if kept := shown(); len(kept.Keys) != 2 || time.Until(kept.ForgetFrom) < 23*time.Hour {
		t.Errorf("after it was refused: %+v", kept)
	}
	if code, _, _ := isthmus(t, "network", "rotate", "--dir", dir, "--force"); code != exitUsage {
		t.Errorf("force alone: exit %d, want %d", code, exitUsage)
	}
	wantIn(t, succeed(t, "network", "rotate", "--dir", dir, "--forget-old", "--force"), both.Keys[1].Key, "is believed by nobody until it is restarted")
	if code, _, _ := isthmus(t, "network", "rotate", "--dir", dir, "--forget-old"); code != exitFinding {
		t.Errorf("nothing to forget: exit %d, want %d", code, exitFinding)
	}
	if last := shown(); last.Step != "settled" || len(last.Keys) != 1 || last.Keys[0].Key != both.Keys[1].Key || !last.Keys[0].Signs {
		t.Errorf("got %+v", last)
	}
	wantIn(t, succeed(t, "network", "show", "--dir", dir), "# signs: fingerprint", "networks:")
	if code, _, errs := isthmus(t, "network", "init", "--network", "west", "--dir", dir); code != exitStart || !strings.Contains(errs, "choose another directory") {
		t.Errorf("init over a key: exit %d, %s", code, errs)
	}
	for _, name := range []string{"we st", "West", "west_1", "-west", strings.Repeat("w", 64)} { // discovery refuses them too
		if code, _, errs := isthmus(t, "network", "init", "--network", name, "--dir", dir+"2"); code != exitUsage || !strings.Contains(errs, "--network") {
			t.Errorf("%q: exit %d, %s, want %d", name, code, errs, exitUsage)
		}
	}
}

func TestNetworkShowPrintsTheLinkAndRotateKeepsIt(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "west")
	succeed(t, "network", "init", "--network", "west", "--dir", dir)
	path := filepath.Join(dir, keyfile.ListFile)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("    namespaces: [shop]\n    maxCapacity: 7 # a tenth of ours\n"); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	wantIn(t, succeed(t, "network", "show", "--dir", dir), "namespaces:\n      - \"shop\"\n", "maxCapacity: 7\n")
	wantIn(t, succeed(t, "network", "rotate", "--dir", dir), "maxCapacity: 7\n")
	wantIn(t, succeed(t, "network", "show", "--dir", dir, "-o", "json"), `"maxCapacity": 7`, `"step": "offered"`)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	wantIn(t, string(b), "namespaces: [shop]", "maxCapacity: 7 # a tenth of ours")
	if err := os.Remove(filepath.Join(dir, keyfile.NextFile)); err != nil {
		t.Fatal(err)
	}
	wantIn(t, succeed(t, "network", "show", "--dir", dir), "# rotation lost: ", "isthmus network rotate --dir "+dir, "# lost: fingerprint")
	wantIn(t, succeed(t, "network", "show", "--dir", dir, "-o", "json"), `"lost": true`, `"step": "lost"`)
	wantIn(t, succeed(t, "network", "rotate", "--dir", dir), "# rotation offered: ", "maxCapacity: 7\n")
}
