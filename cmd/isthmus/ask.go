package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/isthmus-mesh/isthmus/internal/hostport"
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

// validate checks the flags, and brings addresses to host:port; the error is of usage.
func (a *asking) validate() error {
	for i, s := range a.admin {
		address, err := adminAddress(s)
		if err != nil {
			return exit(exitUsage, fmt.Errorf("--admin %.80q: %w", s, err))
		}
		a.admin[i] = address
	}
	return a.check()
}

// adminAddress is host:port of what somebody has written, which may be a URL.
func adminAddress(s string) (string, error) {
	s = strings.TrimSpace(s)
	scheme, rest, is := strings.Cut(s, "://")
	if !is {
		rest = s
	} else if !strings.EqualFold(scheme, "http") {
		return "", fmt.Errorf("admin ports speak plain HTTP: write address:port, such as 127.0.0.1:%s", adminPort)
	}
	rest, path, _ := strings.Cut(rest, "/")
	host, port, err := net.SplitHostPort(rest)
	_, no := netip.ParseAddr(host)
	if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || n == 0 || path != "" || no != nil && !hostport.IsName(host) {
		return "", fmt.Errorf("write address:port, such as 127.0.0.1:%s", adminPort)
	}
	return net.JoinHostPort(host, port), nil
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
		return exit(exitStart, fmt.Errorf("ask %s: %w", address, unasked(err, limit)))
	}
	defer r.Body.Close()
	body, err := io.ReadAll(io.LimitReader(r.Body, maxAnswer))
	if err != nil {
		return exit(exitStart, fmt.Errorf("ask %s: %w", address, err))
	}
	said := struct{ Error string }{}
	switch json.Unmarshal(body, &said); { // what is no JSON shows as its status
	case r.StatusCode == http.StatusBadRequest:
		return exit(exitUsage, fmt.Errorf("%s answers %s: %s", address, r.Status, said.Error))
	case r.StatusCode == http.StatusNotFound && said.Error == "":
		return exit(exitStart, unanswered(ctx, address, path))
	case r.StatusCode != http.StatusOK:
		return exit(exitStart, fmt.Errorf("%s answers %s: %s", address, r.Status, said.Error))
	}
	if err := json.Unmarshal(body, into); err != nil {
		return exit(exitStart, fmt.Errorf("%s answers %s with what cannot be read: %w: it is of another version, or no process of Isthmus: --admin wants its admin.address", address, path, err))
	}
	return nil
}

// unasked is why nobody has answered within limit, and what to do.
func unasked(err error, limit time.Duration) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err // the URL says no more than the address
	}
	var dns *net.DNSError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: nothing listens there: in a cluster run `kubectl --namespace isthmus-system port-forward deploy/isthmus-gateway %s` before, with the pod of a node proxy for what its pods see, and elsewhere name the admin.address of a process that runs with --admin", err, adminPort)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: it does not answer within %v: admin ports are on loopback addresses, which others reach by kubectl port-forward alone", err, limit)
	case errors.As(err, &dns):
		return fmt.Errorf("%w: --admin wants an address of this host, such as 127.0.0.1:%s", err, adminPort)
	case strings.Contains(err.Error(), "malformed HTTP"):
		return fmt.Errorf("%w: what listens there speaks no HTTP: --admin wants the admin.address of a process, port %s in a cluster", err, adminPort)
	}
	return fmt.Errorf("%w: --admin wants the admin.address of a process that runs", err)
}

// unanswered says who does not answer to path, and who does.
func unanswered(ctx context.Context, address, path string) error {
	var s struct{ Process, Network string }
	var list []struct{ Endpoint string }
	question := strings.TrimPrefix(path, "/")
	switch {
	case path != "/status" && ask(ctx, address, "/status", nil, &s) == nil && s.Process != "":
		return fmt.Errorf("%s is %s on network %s, which does not answer %s: ask a node proxy or a gateway", address, plain(s.Process), plain(s.Network), question)
	case path != "/" && ask(ctx, address, "/", nil, &list) == nil && len(list) > 0 && strings.HasPrefix(list[0].Endpoint, "GET "):
		return fmt.Errorf("%s is a process of Isthmus that does not answer %s: is it of an earlier version? Ask a node proxy or a gateway", address, question)
	}
	return fmt.Errorf("%s answers HTTP and knows no %s: it is no admin port of Isthmus: name admin.address with --admin (port %s in a cluster; operations.address, 15020, has readiness and metrics alone)", address, path, adminPort)
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
