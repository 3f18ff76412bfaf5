package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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
		"completion foo":                 {`unknown command "foo" for "isthmus completion"`, "known are", "bash"},
		"completion bsh":                 {`unknown command "bsh" for "isthmus completion"`, `did you mean "bash"?`},
		"completion bash x":              {`"isthmus completion bash" takes no arguments`},
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
		if in == "" { // TestFlagValuesNeverFailSilently has it
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

// The invariant for every flag and argument of every command: an empty value is a usage error that
// names the flag, the value and the remedy. A malformed value never exits 0 without output,
// and never fails without a message.
func TestFlagValuesNeverFailSilently(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("PATH", t.TempDir()) // no kubectl and no helm: nothing is asked
	empty := []string{"", " ", "\t", ",", "a,", ",a", "a,,b"}
	malformed := []string{"\x00", "\n", "=", "x=", "=x", ":", "::", "://", "http://", "%", "[", "/no/such/file", "-", "127.0.0.1", "0.0.0.0:99999", strings.Repeat("x", 70_000)}
	cases := 0
	try := func(args []string, flag, value string, mustReject bool) {
		cases++
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) // ends a server that starts
		defer cancel()
		var out, errs bytes.Buffer
		code := run(ctx, args, &out, &errs)
		show := func() string {
			return fmt.Sprintf("isthmus %.200q: exit %d, stdout %.200q, stderr %.300q", args, code, out.String(), errs.String())
		}
		if mustReject {
			if code != exitUsage || out.Len() > 0 {
				t.Errorf("%s: want exit %d and no output", show(), exitUsage)
			}
			for _, part := range []string{flag + " " + strconv.Quote(value), "empty", ": "} {
				if !strings.Contains(errs.String(), part) {
					t.Errorf("%s: want %q", show(), part)
				}
			}
			return
		}
		if out.Len()+errs.Len() == 0 {
			t.Errorf("%s: want a message", show())
		}
	}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		path := strings.Fields(cmd.CommandPath())[1:]
		words := 0 // arguments that the command takes
		for words < 3 && cmd.ValidateArgs(slices.Repeat([]string{"x"}, words)) != nil {
			words++
		}
		for i := range words {
			for _, v := range []string{"", " "} {
				args := slices.Repeat([]string{"x"}, words)
				args[i] = v
				try(slices.Concat(path, args), fmt.Sprintf("argument %d", i+1), v, true)
			}
		}
		required := func(but string) (args []string) {
			cmd.Flags().VisitAll(func(f *pflag.Flag) {
				if _, is := f.Annotations[cobra.BashCompOneRequiredFlag]; is && f.Name != but {
					args = append(args, "--"+f.Name+"=x")
				}
			})
			return args
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			line := slices.Concat(path, slices.Repeat([]string{"x"}, words), required(f.Name))
			_, slice := f.Value.(pflag.SliceValue)
			switch {
			case f.Value.Type() == "string" || slice:
			default: // a bool, number or duration: pflag rejects these itself
				for _, v := range append(empty, malformed...) {
					try(append(slices.Clone(line), "--"+f.Name+"="+v), "", v, false)
				}
				return
			}
			for _, v := range empty {
				is := strings.TrimSpace(v) == "" || f.Value.Type() == "stringSlice"
				try(append(slices.Clone(line), "--"+f.Name+"="+v), "--"+f.Name, v, is)
			}
			for _, v := range malformed {
				try(append(slices.Clone(line), "--"+f.Name+"="+v), "", v, false)
			}
		})
		for _, c := range cmd.Commands() {
			walk(c)
		}
	}
	walk(newRoot())
	if cases < 500 {
		t.Errorf("%d cases: want those of all flags", cases)
	}
}
