package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
)

// What was mistyped is named, with what was meant; nothing is done and nothing printed.
func TestUsageNamesWhatWasMeant(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("w.card", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string][]string{
		"lnik":                           {`unknown command "lnik"`, `did you mean "link"?`},
		"frobnicate":                     {`unknown command "frobnicate"`, "known are", "link"},
		"ca isue":                        {`unknown command "isue" for "isthmus ca"`, `did you mean "issue"?`},
		"link crad --context w":          {`unknown command "crad" for "isthmus link"`, `did you mean "card"?`},
		"link crad --contexts w":         {`unknown command "crad" for "isthmus link"`, `did you mean "card"?`},
		"link w.card --context w":        {"unknown flag: --context", "did you mean --contexts?", "commas"},
		"link --context e,w --apply":     {"unknown flag: --context", "did you mean --contexts?", "commas"},
		"unlink --context e,w":           {"did you mean --contexts?"},
		"check --context e":              {"did you mean --contexts?"},
		"init --network w --contexts w":  {"unknown flag: --contexts", "did you mean --context?", "one"},
		"link card --contexts w":         {"did you mean --context?"},
		"link --contexts e,w --waite 4m": {"did you mean --wait?"},
		"link --contexts e,w --wait 4":   {"--wait 4", "did you mean 4s?"},
		"link --contexts e,w --wait 1.5": {"did you mean 1.5s?"},
		"check --wait soon":              {`--wait "soon"`, "such as 30s or 5m"},
		"check --contexts e w":           {`"isthmus check" takes no arguments`, `"w"`, "with commas"},
		"status 127.0.0.1:15000":         {"takes no arguments", "--admin"},
		"status --context e":             {"unknown flag: --context", "--admin", "port-forward"},
		"explain --namespace x a b:1":    {"unknown flag: --namespace", "port-forward"},
		"explain one":                    {"2 arguments", "SOURCE and DEST:PORT", "there are 1"},
		"help frob":                      {`unknown command "frob" for "isthmus"`, "known are"},
		"help lnik":                      {`did you mean "link"?`},
		"help ca shw":                    {`unknown command "shw" for "isthmus ca"`, `did you mean "show"?`},
		"help version now":               {`"isthmus version" has no command "now"`},
		"status --frobnicate":            {"unknown flag: --frobnicate"},
		"drill x.yaml --seed many":       {`invalid argument "many"`},
	} {
		code, out, errs := isthmus(t, strings.Fields(line)...)
		if code != exitUsage || out != "" {
			t.Errorf("isthmus %s: exit %d, stdout %q; want %d and none", line, code, out, exitUsage)
		}
		wantIn(t, errs, append(want, "isthmus: ", "--help' for usage")...)
	}
}

func TestHelpOfACommandIsItsOwn(t *testing.T) {
	for topic, line := range map[string]string{"help": "--help", "help link card": "link card --help", "help ca": "ca --help"} {
		if a, b := succeed(t, strings.Fields(topic)...), succeed(t, strings.Fields(line)...); a != b || a == "" {
			t.Errorf("isthmus %s prints\n%s\nisthmus %s prints\n%s", topic, a, line, b)
		}
	}
}

func TestAdminTakesWhatPeopleWrite(t *testing.T) {
	for in, want := range map[string]string{
		"127.0.0.1:15000": "127.0.0.1:15000", "localhost:15000": "localhost:15000", " http://127.0.0.1:15000/": "127.0.0.1:15000", "HTTP://[::1]:80": "[::1]:80", "[::1]:15000": "[::1]:15000", "pod-1.example.com:1": "pod-1.example.com:1",
	} {
		if got, err := adminAddress(in); err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"", "here", "127.0.0.1", ":15000", "127.0.0.1:0", "127.0.0.1:99999", "http://127.0.0.1", "127.0.0.1:15000/status", "https://127.0.0.1:15000", "ftp://x:1", "a b:1", "::1:15000"} {
		code, _, errs := isthmus(t, "status", "--admin", in)
		if in == "" { // no address at all
			continue
		}
		if code != exitUsage || !strings.Contains(errs, "--admin") || !strings.Contains(errs, "write address:port, such as 127.0.0.1:15000") {
			t.Errorf("%q: exit %d, %s", in, code, errs)
		}
	}
}

// Who answers, and with what, is said where it is not what was asked for.
func TestAskingWhoCannotAnswer(t *testing.T) {
	serve := func(answers map[string]string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			text, is := answers[r.URL.Path]
			if !is {
				http.NotFound(w, r)
				return
			}
			w.Write([]byte(text))
		}))
		t.Cleanup(s.Close)
		return strings.TrimPrefix(s.URL, "http://")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Read(make([]byte, 1<<10))
			c.Write([]byte("SSH-2.0-x\r\n"))
			c.Close()
		}
	}()
	defer func() { l.Close(); <-done }()
	controller := serve(map[string]string{"/status": `{"process":"controller c-1","network":"west"}`, "/": `[{"endpoint":"GET /"}]`})
	for name, x := range map[string]struct {
		command, address string
		want             []string
	}{
		"explain of a controller": {"explain a b:1", controller, []string{"is controller c-1 on network west", "does not answer explain", "ask a node proxy or a gateway"}},
		"an old process":          {"status", serve(map[string]string{"/": `[{"endpoint":"GET /"}]`}), []string{"is a process of Isthmus that does not answer status", "earlier version"}},
		"another server":          {"status", serve(nil), []string{"is no admin port of Isthmus", "admin.address", "15020"}},
		"another server's page":   {"status", serve(map[string]string{"/status": "<html>"}), []string{"cannot be read", "no process of Isthmus"}},
		"no HTTP":                 {"status", l.Addr().String(), []string{l.Addr().String(), "--admin wants"}},
		"nobody":                  {"status", "127.0.0.1:1", []string{"connection refused", "nothing listens there", "port-forward deploy/isthmus-gateway 15000", "--admin"}},
		"a name that is none":     {"status", "isthmus.invalid:15000", []string{"isthmus.invalid", "such as 127.0.0.1:15000"}},
	} {
		code, out, errs := isthmus(t, append(strings.Fields(x.command), "--admin", x.address)...)
		if code != exitStart || out != "" || strings.Contains(errs, "http://") {
			t.Errorf("%s: exit %d, %q, %q", name, code, out, errs)
		}
		wantIn(t, errs, x.want...)
	}
}
