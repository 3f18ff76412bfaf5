package boundtoken

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"
	authnv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/isthmus-mesh/isthmus/discovery/kube/pods"
)

// Extras by which the API server says which pod a token is bound to.
const (
	extraPod  = "authentication.kubernetes.io/pod-name"
	extraUID  = "authentication.kubernetes.io/pod-uid"
	extraNode = "authentication.kubernetes.io/node-name"
)

// How says who has vouched for a token; one of a closed set.
type How string

// The ways.
const (
	ByReview How = "review" // the API server has reviewed it
	ByKeys   How = "keys"   // the API server was away; a key of its has signed it
)

// Holder is whom a token has proved its holder to be.
type Holder struct {
	Account   pods.Account
	Pod, UID  string
	Node      string    // on which the pod is
	Expires   time.Time // of the token
	How       How
	Confirmed bool // the pod is known to live, and not by the word of the token alone
}

func (h Holder) String() string {
	return fmt.Sprintf("%s pod %s on %s", h.Account, h.Pod, h.Node)
}

// Config is what a Reviewer needs. All but KeyFile, Log and Metrics is required.
type Config struct {
	Audience string
	Accounts []pods.Account // whose tokens count
	// Pods are those of these accounts, at least.
	Pods *pods.Index
	// KeyFile keeps the keys of the API server over a restart; empty: they are not kept.
	KeyFile string
	Log     zerolog.Logger
	Metrics *Metrics
}

const (
	// turnTime is how long a token waits for others that are reviewed, and reviewTime how long
	// the API server may take then: a node proxy waits 2 s for its welcome.
	turnTime, reviewTime = 500 * time.Millisecond, time.Second
	// awayFor is how long, after it did not answer, it is not asked again: each question
	// would cost its asker reviewTime.
	awayFor = 2 * time.Second
	// reviewedFor is how long a review holds, for what the informer does not see: an
	// account that is deleted.
	reviewedFor = 10 * time.Minute
	// verifiedFor is how long it holds that a key has signed a token.
	verifiedFor = 30 * time.Second
	// deniedFor is how long the API server is not asked again about a token that it has
	// refused.
	deniedFor = 10 * time.Second
	// maxReviews are under way at once, of tokens that are no stranger's.
	maxReviews = 32
	// keysEvery is about how often the keys are fetched, and keysAgain how soon again after a
	// failure, or for tokens of a key that is not known, however many.
	keysEvery, keysAgain = 10 * time.Minute, 5 * time.Second
	// keepAgain is about how soon a file that could not be written is tried again.
	keepAgain = time.Minute
)

// Reviewer finds out who holds a token. Make it with New; Run keeps its keys. Safe for
// concurrent use.
type Reviewer struct {
	cfg       Config
	api       API
	cache     cache
	slots     chan struct{}
	strangers *strangers
	wake      chan struct{} // a key is not known

	// Of Run alone.
	unkept  bool  // keys were fetched that the file does not have
	keeping error // of the last write of the file

	mu    sync.Mutex
	keys  keySet
	asked time.Time     // when they were last asked for
	next  chan struct{} // closed when they have been asked for again, for a key that is not known; nil: nobody waits
	away  time.Time     // until then the API server is not asked
	why   string        // it could not be asked the last time; empty if it could
	stale string        // why the keys could not be fetched the last time; empty if they could
}

// New returns a Reviewer that asks api. Keys of cfg.KeyFile that cannot be read are said
// in the log.
func New(api API, cfg Config) *Reviewer {
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics(nil)
	}
	r := &Reviewer{cfg: cfg, api: api, slots: make(chan struct{}, maxReviews), strangers: newStrangers(), wake: make(chan struct{}, 1)}
	if cfg.KeyFile != "" {
		keys, err := readKeyFile(cfg.KeyFile)
		switch {
		case err != nil:
			cfg.Log.Warn().Err(err).Msg("kept keys of the Kubernetes API server cannot be used")
		case keys.fresh(time.Now()):
			r.keys = keys
			cfg.Log.Info().Str("file", cfg.KeyFile).Time("fetched", keys.Fetched).Msg("kept keys of the Kubernetes API server read")
		}
	}
	return r
}

// Review returns who holds the token, which has come from an address. An error is a *Refusal.
//
// A token that a key of the cluster has signed, or that was accepted before, takes at most
// turnTime and reviewTime, whatever tokens others show that are neither.
func (r *Reviewer) Review(ctx context.Context, from netip.Addr, token string) (Holder, error) {
	h, err := r.review(ctx, from, token)
	if err != nil {
		r.cfg.Metrics.refused(ReasonOf(err))
		return Holder{}, err
	}
	r.cfg.Metrics.accepted(h.How)
	return h, nil
}

// Refuse counts that a token, though accepted, was refused by who had asked.
func (r *Reviewer) Refuse(why Reason) { r.cfg.Metrics.refused(why) }

func (r *Reviewer) review(ctx context.Context, from netip.Addr, token string) (Holder, error) {
	if len(token) > maxToken {
		return Holder{}, refuse(Malformed, "a token of %d bytes: want at most %d", len(token), maxToken)
	}
	k, now := sha256.Sum256([]byte(token)), time.Now()
	if e, ok := r.cache.get(k, now); ok {
		if e.refusal != nil {
			return Holder{}, e.refusal
		}
		if err := r.Holds(e.holder, now); err != nil {
			r.cache.drop(k)
			return Holder{}, err
		}
		return e.holder, nil
	}
	h, err := r.find(ctx, shown{token, from, r.cache.accepted(k, now)}, now)
	if err != nil {
		var why *Refusal
		if errors.As(err, &why) && why.Reason == Denied {
			r.cache.put(k, entry{refusal: why, until: now.Add(deniedFor)}, now)
		}
		return Holder{}, err
	}
	until := now.Add(reviewedFor)
	if h.How == ByKeys || !h.Confirmed {
		until = now.Add(verifiedFor)
	}
	if h.Expires.Before(until) {
		until = h.Expires
	}
	r.cache.put(k, entry{holder: h, until: until}, now)
	return h, nil
}

// shown is a token that somebody has brought.
type shown struct {
	token    string
	from     netip.Addr
	accepted bool // before
}

// find asks whoever can tell.
func (r *Reviewer) find(ctx context.Context, t shown, now time.Time) (Holder, error) {
	body, err := payload(t.token)
	if err != nil {
		return Holder{}, refuse(Malformed, "what was shown as a token is no JWT in the compact form: %w: show a projected service-account token (serviceAccountToken in a volume)", err)
	}
	c, err := readClaims(body)
	if err != nil {
		return Holder{}, err
	}
	r.mu.Lock()
	keys, away := r.keys, r.away
	r.mu.Unlock()
	if !keys.fresh(now) {
		keys = keySet{}
	}
	if err := c.check(r.cfg.Audience, r.cfg.Accounts, keys.Issuer, now); err != nil {
		return Holder{}, err
	}
	signed := keys.verify(t.token)
	stranger := errors.Is(signed, errUnknownKey) && !t.accepted
	if stranger {
		if !r.strangers.allow(t.from, now) {
			return Holder{}, refuse(Limited, "the token that says it is of pod %s of %s: %w, and %s has shown too many of those: at most %d at once and %d a second are looked at; try again later", c.Pod, c.Account, signed, t.from, strangersBurst, strangersPerSecond)
		}
		if latest, trusted := r.latest(ctx, now); trusted {
			if err := c.check(r.cfg.Audience, r.cfg.Accounts, latest.Issuer, now); err != nil {
				return Holder{}, err
			}
			signed, stranger = latest.verify(t.token), false
		}
	}
	if signed != nil && (!errors.Is(signed, errUnknownKey) || !stranger && !t.accepted) {
		return Holder{}, refuse(Unsigned, "the token that says it is of pod %s of %s: %w", c.Pod, c.Account, signed)
	}
	if now.Before(away) {
		return r.byKeys(c, signed, now)
	}
	status, err := r.ask(ctx, t, stranger)
	if err != nil {
		return r.byKeys(c, signed, now)
	}
	return r.byReview(c, status, now)
}

// enter waits until one more token may be reviewed. The caller calls leave.
func (r *Reviewer) enter(ctx context.Context, from netip.Addr, stranger bool) (leave func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, turnTime)
	defer cancel()
	if stranger {
		return r.strangers.enter(ctx, from)
	}
	select {
	case r.slots <- struct{}{}:
		return func() { <-r.slots }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// ask has the API server review the token.
func (r *Reviewer) ask(ctx context.Context, t shown, stranger bool) (authnv1.TokenReviewStatus, error) {
	leave, err := r.enter(ctx, t.from, stranger)
	if err != nil {
		return authnv1.TokenReviewStatus{}, err // others wait for it; that says nothing of it
	}
	limited, cancel := context.WithTimeout(ctx, reviewTime) // its own: a wait must not look as if the API server were away
	defer cancel()
	status, err := r.api.Review(limited, t.token, r.cfg.Audience)
	leave()
	if ctx.Err() != nil {
		return status, ctx.Err() // whoever asks has left
	}
	r.mu.Lock()
	was := r.why
	if err == nil {
		r.why = ""
	} else {
		err = inner(err)
		r.why, r.away = err.Error(), time.Now().Add(awayFor)
	}
	r.mu.Unlock()
	switch {
	case err == nil && was != "":
		r.cfg.Log.Info().Msg("the Kubernetes API server reviews tokens again")
	case err != nil && was == "":
		remedy := "tokens are verified by its cached keys until they expire; see whether it runs and can be reached"
		if apierrors.IsForbidden(err) {
			remedy = "tokens are verified by its cached keys: give the role of this process the verb create for tokenreviews.authentication.k8s.io"
		}
		r.cfg.Log.Warn().Err(err).Str("remedy", remedy).Msg("the Kubernetes API server does not review tokens")
	}
	return status, err
}

// byReview takes the API server's word.
func (r *Reviewer) byReview(c claims, s authnv1.TokenReviewStatus, now time.Time) (Holder, error) {
	one := func(key string) string {
		if v := s.User.Extra[key]; len(v) == 1 {
			return v[0]
		}
		return ""
	}
	switch {
	case !s.Authenticated:
		return Holder{}, refuse(Denied, "the API server does not accept the token that says it is of pod %s of %s: %.300q", c.Pod, c.Account, s.Error)
	case !slices.Contains(s.Audiences, r.cfg.Audience):
		return Holder{}, refuse(WrongAudience, "the API server says that the token of pod %s of %s is for audience %.200q: want %q", c.Pod, c.Account, s.Audiences, r.cfg.Audience)
	case s.User.Username != userName(c.Account):
		return Holder{}, refuse(WrongAccount, "the API server says that the token is of %.300q: want %s", s.User.Username, list(r.cfg.Accounts))
	case one(extraUID) == "" || one(extraUID) != c.UID:
		return Holder{}, refuse(NotBound, "the API server says that the token of %s is bound to pod %.80q, the token names %s", c.Account, one(extraUID), c.UID)
	}
	node := one(extraNode)
	if node == "" {
		node = c.Node
	}
	h := Holder{Account: c.Account, Pod: c.Pod, UID: c.UID, Node: node, Expires: c.Expires, How: ByReview}
	return r.place(h, now)
}

// byKeys takes the word of the keys that were fetched while the API server answered.
func (r *Reviewer) byKeys(c claims, signed error, now time.Time) (Holder, error) {
	if signed != nil {
		r.mu.Lock()
		why := r.why
		r.mu.Unlock()
		return Holder{}, refuse(Unavailable, "the API server does not review the token of pod %s of %s (%s), and by its keys it cannot be verified: %w", c.Pod, c.Account, why, signed)
	}
	return r.place(Holder{Account: c.Account, Pod: c.Pod, UID: c.UID, Node: c.Node, Expires: c.Expires, How: ByKeys}, now)
}

// place says on which node the pod of h is, which must live there.
func (r *Reviewer) place(h Holder, now time.Time) (Holder, error) {
	if !r.cfg.Pods.Known() {
		// The API server reviews tokens of pods that live only. Its keys say nothing of
		// that: until the pods are known, the token's own word has to do.
		if h.Node == "" {
			return Holder{}, refuse(Unavailable, "on which node pod %s of %s is cannot be told before the pods of the cluster are known", h.Pod, h.Account)
		}
		h.Confirmed = h.How == ByReview
		return h, nil
	}
	p, err := r.live(h, now)
	if err != nil {
		return Holder{}, err
	}
	h.Node, h.Confirmed = p.Node, true
	return h, nil
}

// live returns the pod of h, which must be what h says of it.
func (r *Reviewer) live(h Holder, now time.Time) (pods.Pod, error) {
	p, ok := r.cfg.Pods.ByUID(h.UID)
	switch {
	case !ok || !p.Live(now):
		return p, refuse(WrongPod, "pod %s of %s, with UID %s, does not live", h.Pod, h.Account, h.UID)
	case p.Account != h.Account || p.Name != h.Pod:
		return p, refuse(WrongPod, "the token is of pod %s of %s, and its UID %s is that of pod %s of %s", h.Pod, h.Account, h.UID, p.Name, p.Account)
	case p.Node == "" || h.Node != "" && h.Node != p.Node:
		return p, refuse(WrongNode, "the token of pod %s of %s names node %q, and the pod is on %q", h.Pod, h.Account, h.Node, p.Node)
	}
	return p, nil
}

// Holds returns nil as long as what Review has found is so: the token has not expired, and
// its pod lives. It asks nobody.
func (r *Reviewer) Holds(h Holder, now time.Time) error {
	if !now.Before(h.Expires) {
		return refuse(Expired, "the token of pod %s of %s expired at %s", h.Pod, h.Account, h.Expires.UTC().Format(time.RFC3339))
	}
	if !r.cfg.Pods.Known() {
		return nil
	}
	_, err := r.live(h, now)
	return err
}

// Status is how it stands with proof by tokens.
type Status struct {
	Away    string    `json:"away,omitempty"`   // why the API server did not review the last token; empty if it did so
	Keys    int       `json:"keys"`             // number of keys that verify tokens while it is unavailable
	Fetched time.Time `json:"fetched,omitzero"` // when these keys were last fetched
	Error   string    `json:"error,omitempty"`  // why the last fetch of keys failed
}

// Findings says, a line each, what of it an operator should know now.
func (s Status) Findings() (lines []string) {
	if s.Away != "" {
		lines = append(lines, fmt.Sprintf("the Kubernetes API server does not review tokens of node proxies, which %d of its keys verify meanwhile: %s", s.Keys, s.Away))
	}
	if s.Error != "" {
		lines = append(lines, "the keys of the Kubernetes API server, for the time without it, cannot be fetched: "+s.Error)
	}
	return lines
}

// Status tells how it stands.
func (r *Reviewer) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Status{Away: r.why, Error: r.stale}
	if r.keys.fresh(time.Now()) {
		s.Keys, s.Fetched = len(r.keys.Keys.Keys), r.keys.Fetched
	}
	return s
}
