package boundtoken

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/isthmus-mesh/isthmus/discovery/kube/pods"
)

func inBubble(t *testing.T, f func(*testing.T)) { synctest.Test(t, f) }

// want says how a token must be judged.
func (w *world) want(name, text string, reason Reason) Holder {
	w.t.Helper()
	h, err := w.Review(w.t.Context(), home, text)
	switch {
	case reason == "" && err != nil:
		w.t.Errorf("%s: %v; want it accepted", name, err)
	case reason != "" && err == nil:
		w.t.Errorf("%s: accepted as %s; want it refused for %q", name, h, reason)
	case reason != "" && ReasonOf(err) != reason:
		w.t.Errorf("%s: refused for %q (%v); want %q", name, ReasonOf(err), err, reason)
	}
	return h
}

// Whichever way a token is judged, by the API server, by its keys while it is away, or by
// these at a gateway that was restarted meanwhile: a stolen one is refused.
func TestStolenTokensAreRefused(t *testing.T) {
	for _, way := range []string{"review", "review without keys", "keys", "keys after a restart"} {
		t.Run(way, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				file := filepath.Join(t.TempDir(), "keys")
				w := newWorld(t, func(c *Config) { c.KeyFile = file })
				good := w.run(nodeproxy, "np-1", "uid-1", "node-1")
				nodeless := w.run(nodeproxy, "np-2", "uid-2", "node-2", func(x *token) { x.node = "" })
				stranger := newSigner(t, "k1") // by the name of the cluster's key
				if way != "review without keys" {
					w.fetch()
				}
				if strings.HasPrefix(way, "keys") {
					w.server.set(func() { w.server.away = errors.New("connection refused") })
				}
				if way == "keys after a restart" {
					w.Reviewer = New(w.server, w.cfg)
				}
				forged := Unsigned
				if way == "review without keys" {
					forged = Denied
				}
				h := w.want("its own", good, "")
				if h.Node != "node-1" || h.Account != nodeproxy || h.UID != "uid-1" || !h.Confirmed {
					t.Errorf("its own: %+v", h)
				}
				if got := map[bool]How{true: ByKeys, false: ByReview}[strings.HasPrefix(way, "keys")]; h.How != got {
					t.Errorf("proven by %q; want %q", h.How, got)
				}
				if h := w.want("one that names no node", nodeless, ""); h.Node != "node-2" {
					t.Errorf("one that names no node is on %q; want that of its pod", h.Node)
				}
				w.want("another pod's", w.run(shop, "shop-1", "uid-3", "node-1"), WrongAccount)
				w.want("another audience's", w.token(nodeproxy, "np-1", "uid-1", "node-1", func(x *token) { x.audiences = []string{"istio-ca"} }), WrongAudience)
				w.want("no audience's", w.token(nodeproxy, "np-1", "uid-1", "node-1", func(x *token) { x.audiences = nil }), WrongAudience)
				w.want("expired", w.token(nodeproxy, "np-1", "uid-1", "node-1", func(x *token) { x.expires = time.Now().Add(-time.Second) }), Expired)
				w.want("bound to no pod", w.token(nodeproxy, "", "", ""), NotBound)
				w.want("of a pod that there is not", w.token(nodeproxy, "np-9", "uid-9", "node-1"), WrongPod)
				w.want("of an earlier pod of that name", w.token(nodeproxy, "np-1", "uid-0", "node-1"), WrongPod)
				w.want("that says another node", w.token(nodeproxy, "np-1", "uid-1", "node-2"), WrongNode)
				w.want("that says another name", w.token(nodeproxy, "np-2", "uid-1", "node-1"), WrongPod)
				w.want("signed by somebody else", stranger.sign(t, token{nodeproxy, "np-1", "uid-1", "node-1", []string{ours}, time.Now().Add(time.Hour), issuer}.body()), forged)
				if way != "review without keys" {
					w.want("of another issuer", w.token(nodeproxy, "np-1", "uid-1", "node-1", func(x *token) { x.issuer = "https://other" }), Unsigned)
				}
				cut := strings.LastIndexByte(good, '.')
				w.want("with its signature cut off", good[:cut+1], Malformed)
				w.want("with a changed signature", good[:cut+1]+strings.Repeat("A", len(good)-cut-1), forged)
				for _, garbage := range []string{"", ".", "a.b.c", "....", strings.Repeat("x", maxToken+1), good + ".x", "e30.e30.e30"} {
					w.want("garbage", garbage, Malformed)
				}
				w.end(nodeproxy, "np-1", "uid-1")
				w.want("of a pod that is gone", good, WrongPod)
			})
		})
	}
}

func TestWithoutKeysNobodyIsBelievedWhileTheAPIServerIsAway(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t)
		text := w.run(nodeproxy, "np-1", "uid-1", "node-1")
		w.server.set(func() { w.server.away = errors.New("connection refused") })
		w.want("without keys", text, Unavailable)
		if s := w.Status(); s.Away == "" || s.Keys != 0 {
			t.Errorf("status: %+v", s)
		}
		w.server.set(func() { w.server.away = nil })
		w.want("within the pause", text, Unavailable)
		time.Sleep(awayFor)
		w.want("when it answers", text, "")
		if s := w.Status(); s.Away != "" {
			t.Errorf("status: %+v", s)
		}
	})
}

func TestReviewsAreRememberedUntilTheyCouldBeWrong(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.fetch()
		text := w.run(nodeproxy, "np-1", "uid-1", "node-1")
		for range 10 {
			w.want("again and again", text, "")
		}
		if w.server.reviews != 1 {
			t.Errorf("%d reviews of one token; want one", w.server.reviews)
		}
		time.Sleep(reviewedFor)
		w.want("later", text, "")
		if w.server.reviews != 2 {
			t.Errorf("%d reviews; want a second one after %v", w.server.reviews, reviewedFor)
		}
		w.server.set(func() { w.server.away = errors.New("connection refused") })
		time.Sleep(reviewedFor)
		if h := w.want("without the API server", text, ""); h.How != ByKeys {
			t.Errorf("proven by %q", h.How)
		}
		w.server.set(func() { w.server.away = nil })
		time.Sleep(verifiedFor)
		if h := w.want("with it again", text, ""); h.How != ByReview {
			t.Errorf("proven by %q, though the API server is back", h.How)
		}
		time.Sleep(time.Hour)
		w.want("after its time", text, Expired)
	})
}

// While the pods are not known yet, after a restart without the API server, the word of a
// token that a key has signed has to do; once they are known it has to be true.
func TestWhatWasBelievedBeforeThePodsWereKnownIsHeldToThem(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.fetch()
		real, gone := w.run(nodeproxy, "np-1", "uid-1", "node-1"), w.token(nodeproxy, "np-2", "uid-2", "node-2")
		nodeless := w.token(nodeproxy, "np-3", "uid-3", "")
		w.server.set(func() { w.server.away = errors.New("connection refused") })
		w.index = pods.NewIndex(nil)
		w.cfg.Pods = w.index
		keys := w.keys
		w.Reviewer = New(w.server, w.cfg)
		w.keys = keys
		a, b := w.want("that of a pod", real, ""), w.want("that of a pod that is gone", gone, "")
		if a.Confirmed || b.Confirmed {
			t.Error("the word of a token alone counts as confirmed")
		}
		w.want("one that names no node", nodeless, Unavailable)
		w.run(nodeproxy, "np-1", "uid-1", "node-1")
		w.index.SetKnown()
		if err := w.Holds(a, time.Now()); err != nil {
			t.Errorf("the pod that lives: %v", err)
		}
		if ReasonOf(w.Holds(b, time.Now())) != WrongPod {
			t.Error("the pod that is gone is believed to live, though all pods are known")
		}
		w.want("that of a pod that is gone", gone, WrongPod)
	})
}

func TestPodsThatAreOverOrDeletedProveNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.fetch()
		text := w.run(nodeproxy, "np-1", "uid-1", "node-1")
		set := func(change func(*corev1.Pod)) {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "isthmus-system", Name: "np-1", UID: types.UID("uid-1")}, Spec: corev1.PodSpec{ServiceAccountName: "nodeproxy", NodeName: "node-1"}}
			change(p)
			w.index.Set(p)
		}
		set(func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now().Add(30 * time.Second)} })
		h := w.want("one that terminates", text, "")
		time.Sleep(89 * time.Second)
		w.want("one that should be gone", text, "")
		time.Sleep(2 * time.Second)
		w.want("one that must be gone", text, WrongPod)
		if ReasonOf(w.Holds(h, time.Now())) != WrongPod {
			t.Error("its stream would go on")
		}
		for _, phase := range []corev1.PodPhase{corev1.PodFailed, corev1.PodSucceeded} {
			set(func(p *corev1.Pod) { p.Status.Phase = phase })
			w.want(string(phase), text, WrongPod)
		}
		set(func(p *corev1.Pod) { p.Spec.NodeName = "" })
		w.want("one that is on no node", text, WrongNode)
	})
}

func TestANewKeyOfTheAPIServerIsLearntAndAnOldOneForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t)
		ctx := t.Context()
		go w.Run(ctx)
		synctest.Wait()
		text := w.run(nodeproxy, "np-1", "uid-1", "node-1")
		second := newSigner(t, "k2")
		w.server.set(func() { w.server.signers = append(w.server.signers, second) })
		renewed := second.sign(t, token{nodeproxy, "np-1", "uid-1", "node-1", []string{ours}, time.Now().Add(48 * time.Hour), issuer}.body())
		w.want("by the new key, right behind the last question", renewed, Unsigned)
		time.Sleep(keysAgain)
		w.want("by the new key, reviewed", renewed, "")
		time.Sleep(2 * keysAgain)
		w.server.set(func() { w.server.away = errors.New("connection refused") })
		time.Sleep(reviewedFor)
		if h := w.want("by the new key, alone", renewed, ""); h.How != ByKeys {
			t.Errorf("proven by %q", h.How)
		}
		w.want("by the old key", text, "")
		time.Sleep(keysFor)
		w.want("a day without the API server", renewed, Unavailable)
		w.server.set(func() { w.server.away, w.server.signers = nil, []signer{second} })
		time.Sleep(2 * keysEvery)
		w.want("with it again", renewed, "")
		w.want("by a key that it has no more", w.server.signers[0].sign(t, token{nodeproxy, "np-1", "uid-1", "node-1", []string{ours}, time.Now().Add(time.Hour), issuer}.body()), "")
		w.want("by a key that it has no more", newSigner(t, "k1").sign(t, token{nodeproxy, "np-1", "uid-1", "node-1", []string{ours}, time.Now().Add(time.Hour), issuer}.body()), Unsigned)
	})
}

func TestAKeyFileThatCannotBeUsedIsNone(t *testing.T) {
	for name, text := range map[string]string{"empty": "", "cut": `{"issuer":"x","keys":{"keys":[`, "no issuer": `{"keys":{"keys":[]}}`, "a secret key": ""} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "keys")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if k, err := readKeyFile(file); err == nil {
				t.Errorf("read %+v", k)
			}
			w := newWorld(t, func(c *Config) { c.KeyFile = file })
			w.want("reviewed all the same", w.run(nodeproxy, "np-1", "uid-1", "node-1"), "")
		})
	}
}

// Keys that could not be written are, once they can be, also when the API server has gone meanwhile.
func TestKeysAreKeptWhileTheAPIServerIsAway(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "later")
		w := newWorld(t, func(c *Config) { c.KeyFile = filepath.Join(dir, "keys") })
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		time.Sleep(10 * time.Second)
		w.server.set(func() { w.server.away = errors.New("connection refused") })
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * keepAgain)
		if k, err := readKeyFile(filepath.Join(dir, "keys")); err != nil || !k.fresh(time.Now()) {
			t.Errorf("the file has %+v, %v; want the keys", k, err)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
