package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// asking are the flags of commands that ask running processes.
type asking struct {
	admin  []string
	watch  bool
	format *string
	check  func() error
}

func askFlags(cmd *cobra.Command) *asking {
	a := &asking{}
	cmd.Flags().StringSliceVar(&a.admin, "admin", []string{"127.0.0.1:15000"}, "admin address of a node proxy or gateway, several with commas")
	cmd.Flags().BoolVarP(&a.watch, "watch", "w", false, "go on, and print again whenever something has changed")
	a.format, a.check = outputFlag(cmd)
	return a
}

// validate checks the flags; the error is of usage.
func (a *asking) validate() error {
	for _, s := range a.admin {
		if _, err := netip.ParseAddrPort(s); err != nil {
			return exit(exitUsage, fmt.Errorf("--admin: %q: write address:port, for example 127.0.0.1:15000", s))
		}
	}
	return a.check()
}

// askLimit bounds one question and its answer.
const askLimit = 5 * time.Second

// maxAnswer bounds what is read of an answer, in bytes.
const maxAnswer = 256 << 20

// direct goes to admin ports without the proxy of the environment: they are of this
// host or network, and a proxy would see what they say.
var direct = http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// ask reads what the admin port at address answers to path. A refusal of the request
// is of usage, everything else could not be done.
func ask(ctx context.Context, address, path string, query url.Values, into any) error {
	return askFor(ctx, askLimit, address, path, query, into)
}

// askFor is ask of what takes its time.
func askFor(ctx context.Context, limit time.Duration, address, path string, query url.Values, into any) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	u := url.URL{Scheme: "http", Host: address, Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return exit(exitStart, err)
	}
	r, err := direct.Do(req)
	if err != nil {
		return exit(exitStart, fmt.Errorf("ask %s: %w: is a node proxy or gateway running there? name its admin.address with --admin", address, err))
	}
	defer r.Body.Close()
	body, err := io.ReadAll(io.LimitReader(r.Body, maxAnswer))
	if err != nil {
		return exit(exitStart, fmt.Errorf("ask %s: %w", address, err))
	}
	if r.StatusCode != http.StatusOK {
		said := struct{ Error string }{}
		json.Unmarshal(body, &said) // what is no JSON shows as its status
		code := exitStart
		if r.StatusCode == http.StatusBadRequest {
			code = exitUsage
		}
		return exit(code, fmt.Errorf("%s answers %s: %s", address, r.Status, said.Error))
	}
	if err := json.Unmarshal(body, into); err != nil {
		return exit(exitStart, fmt.Errorf("ask %s: %w: is it of another version?", address, err))
	}
	return nil
}

// askAll asks every process at once, and returns the answers in the order of --admin,
// without those of processes that could not be asked: failed has an error for each.
func askAll[T any](ctx context.Context, a *asking, path string, query url.Values) (list []T, failed []error) {
	answers, errs := make([]T, len(a.admin)), make([]error, len(a.admin))
	var all sync.WaitGroup
	for i, address := range a.admin {
		all.Go(func() { errs[i] = ask(ctx, address, path, query, &answers[i]) })
	}
	all.Wait()
	list = make([]T, 0, len(answers))
	for i := range answers {
		if errs[i] == nil {
			list = append(list, answers[i])
		}
	}
	return list, errs
}

// answered is what a command prints; in two with the same key, time alone has passed.
type answered struct {
	key, text string
	failed    []error // for each address: why it could not be asked, or nil
}

// could reports whether all addresses answered; if not, the error has the highest exit
// code of theirs.
func (x answered) could() error {
	code := 0
	for _, err := range x.failed {
		if e := (*exitError)(nil); errors.As(err, &e) {
			code = max(code, e.code)
		}
	}
	if code == 0 {
		return nil
	}
	return exit(code, errors.Join(x.failed...))
}

// follow calls once and prints what came of it: what could not be asked outweighs a
// finding. With --watch it goes on every second until the context ends, prints what is
// new, and says on errs who cannot be asked, from the first question on, and who can
// again; a question that nobody takes ends it.
func (a *asking) follow(ctx context.Context, w, errs io.Writer, once func(context.Context) (answered, error)) error {
	last, down, printed := "", make([]bool, len(a.admin)), false
	for first := true; ; first = false {
		x, err := once(ctx)
		could := x.could()
		if finding := (*exitError)(nil); err != nil && !(errors.As(err, &finding) && finding.code == exitFinding) && first {
			return err
		}
		nobody := could != nil && !slices.Contains(x.failed, nil)
		if code := (*exitError)(nil); nobody && first && (!a.watch || errors.As(could, &code) && code.code == exitUsage) {
			return could
		}
		if ctx.Err() != nil && !first {
			return nil
		}
		if a.watch && a.tell(errs, x.failed, down) {
			last = ""
		}
		if !nobody && x.text != "" && x.key != last {
			if printed && *a.format != "json" {
				fmt.Fprintf(w, "--- %s\n", time.Now().Format(time.TimeOnly))
			}
			io.WriteString(w, x.text)
			last, printed = x.key, true
		}
		if !a.watch && could != nil {
			return could
		} else if !a.watch {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

// tell says which addresses cannot be asked any more, and which can again; back if
// there is one of these.
func (a *asking) tell(w io.Writer, failed []error, down []bool) (back bool) {
	for i, err := range failed {
		switch now := time.Now().Format(time.TimeOnly); {
		case err != nil && !down[i]:
			fmt.Fprintf(w, "%s cannot be asked since %s: %s\n", a.admin[i], now, cause(err))
		case err == nil && down[i]:
			fmt.Fprintf(w, "%s answers again since %s\n", a.admin[i], now)
			back = true
		}
		down[i] = err != nil
	}
	return back
}

// cause is the error of the operating system below err, if there is one.
func cause(err error) string {
	if no := syscall.Errno(0); errors.As(err, &no) {
		return no.Error()
	}
	return err.Error()
}
