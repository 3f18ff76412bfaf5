// Package owned is what isthmus-controller reads and writes at the API server of its
// cluster: its Lease, ServiceImports, the ledger of virtual addresses, conditions of
// ServiceExports, Events, and the taint of nodes that are not ready yet. What is written,
// packages controller/... decide.
//
// It promises that every write of what others could have changed names the version that it
// is a change of, and fails otherwise ([ErrStale]); and that nothing is overwritten that
// somebody else owns.
package owned

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/rs/zerolog"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/isthmus-mesh/isthmus/discovery/kube"
)

// ErrStale is matched by the error of a write of something that has changed since it was
// read: read it again.
var ErrStale = errors.New("it has changed since it was read")

// ErrGone is matched by the error of a write of something that is not there, or in a
// namespace that is not.
var ErrGone = errors.New("it is not there")

// ErrRefused is matched by the error of a write that the API server refuses for what it
// is of, such as an object that cannot be: it says nothing of writes of others.
var ErrRefused = errors.New("it is refused")

// ErrDenied is matched by the error of a write that something beside the role of this
// process forbids, such as the quota of a namespace, or a webhook that is to allow it and
// does not answer: its like fail too, as a rule.
var ErrDenied = errors.New("it is denied")

// ErrNoRight is matched by the error of a write that the role of this process does not
// allow, in that namespace at least.
var ErrNoRight = errors.New("this process has no right to it")

// OfOne reports whether a write has failed for what it is, or is of, so that others may not.
func OfOne(err error) bool {
	for _, e := range []error{ErrStale, ErrGone, ErrRefused, ErrDenied, ErrNoRight} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// ManagedBy is the label of what the controller has made, and its value.
const (
	ManagedByLabel = "app.kubernetes.io/managed-by"
	ManagedBy      = "isthmus-controller"
)

const (
	// writesPerSecond and writesAtOnce bound what one controller asks of the API server, so
	// that a change of everything is no herd.
	writesPerSecond = 20
	writesAtOnce    = 40
	// requestTime bounds one request: a writer that leads no more does not write much later.
	requestTime = 10 * time.Second
)

// Client is the API server. Safe for concurrent use.
type Client struct {
	core      kubernetes.Interface
	dynamic   dynamic.Interface
	meta      metadata.Interface
	server    string
	namespace string // of this process
	log       zerolog.Logger

	mu     sync.Mutex
	fails  map[string]string    // what does not work now, and why
	warned map[string]time.Time // when that was logged, of each request
}

// Open returns a client of the cluster that c names; namespace is that of the controller's
// own objects. It asks nothing yet.
func Open(c kube.Config, namespace string, log zerolog.Logger) (*Client, error) {
	r, err := c.Rest()
	if err != nil {
		return nil, err
	}
	r.UserAgent = ManagedBy
	r.QPS, r.Burst = writesPerSecond, writesAtOnce
	out := &Client{server: r.Host, namespace: namespace, log: log, fails: map[string]string{}, warned: map[string]time.Time{}}
	if out.core, err = kubernetes.NewForConfig(rest.CopyConfig(r)); err == nil {
		if out.dynamic, err = dynamic.NewForConfig(rest.CopyConfig(r)); err == nil {
			out.meta, err = metadata.NewForConfig(metadata.ConfigFor(r))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("kube: %w", err)
	}
	return out, nil
}

// quiet keeps client-go from writing to stderr what Client says in the log.
func quiet(ctx context.Context) context.Context { return klog.NewContext(ctx, logr.Discard()) }

// judged is err in the words of this package; nil stays nil.
func judged(err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return fmt.Errorf("%w: %w", ErrStale, err)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%w: %w", ErrGone, err)
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
		return fmt.Errorf("%w: %w", ErrRefused, err)
	case apierrors.IsForbidden(err) && lacksRight(err):
		return fmt.Errorf("%w: %w", ErrNoRight, err)
	case apierrors.IsForbidden(err), apierrors.IsInternalError(err) && strings.Contains(err.Error(), "failed calling webhook"):
		return fmt.Errorf("%w: %w", ErrDenied, err)
	}
	if u := (*url.Error)(nil); errors.As(err, &u) {
		return u.Err // the address is known, and the rest of the question differs each time
	}
	return err
}

// lacksRight reports whether an authorizer forbids it, and not admission, which says so by
// the same status: the words are those of the API server's own filter for all authorizers.
func lacksRight(err error) bool {
	text := err.Error()
	return strings.Contains(text, "User ") && strings.Contains(text, " cannot ")
}

// warnAgain is how long the failure of a request is not logged again, which works and does
// not by turns.
const warnAgain = 10 * time.Minute

// note keeps what came of doing what, and logs the first failure and its end. What is
// stale or gone, and what is refused for what it is, is an answer as any other.
func (c *Client) note(ctx context.Context, what string, err error) {
	if ctx.Err() != nil || errors.Is(err, context.Canceled) {
		return
	}
	if errors.Is(err, ErrStale) || errors.Is(err, ErrGone) || errors.Is(err, ErrRefused) || errors.Is(err, ErrDenied) {
		return
	}
	now := time.Now()
	c.mu.Lock()
	_, failed := c.fails[what]
	quiet := !failed && now.Sub(c.warned[what]) < warnAgain
	if err == nil {
		delete(c.fails, what)
	} else {
		c.fails[what] = err.Error()
		if !failed && !quiet {
			c.warned[what] = now
		}
	}
	c.mu.Unlock()
	switch {
	case err == nil && failed:
		c.log.Info().Str("server", c.server).Str("request", what).Msg("the Kubernetes API server answers again")
	case err != nil && !failed && !quiet:
		remedy := "what is there stays; see whether the API server runs and can be reached"
		if apierrors.IsForbidden(err) {
			remedy = "give the role of this process the right that the error names (docs/rights.md)"
		}
		c.log.Warn().Str("server", c.server).Str("request", what).Err(err).Str("remedy", remedy).Msg("the Kubernetes API server does not answer as it should")
	}
}

// noteWatch keeps what came of a watch. Where it is there no list is missed: it came behind one, or it
// begins with all objects itself.
func (c *Client) noteWatch(ctx context.Context, of string, err error) {
	if c.note(ctx, "watch "+of, err); err == nil {
		c.note(ctx, "list "+of, nil)
	}
}

// Failing says, by what was asked, why the API server does not answer as it should.
func (c *Client) Failing() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]string{}
	for k, v := range c.fails {
		out[k] = v
	}
	return out
}

// once bounds one request, and notes what came of it.
func (c *Client) once(ctx context.Context, what string, ask func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	err := judged(ask(ctx))
	c.note(ctx, what, err)
	return err
}
