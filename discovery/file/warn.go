package file

import (
	"context"
	"strings"
	"time"
)

// Warnings says which policies of the file are for no workload of it, by their selector or namespace, or name ports of services on which
// its workloads do not listen, for a process that knows no others. Without a file, or one that can be used, there are none.
func (c Config) Warnings() (list []string) {
	if c.File == "" {
		return nil
	}
	s, _, err := c.Load()
	if err != nil {
		return nil
	}
	for _, u := range append(s.UnmatchedPolicies(), s.DesertedPolicies()...) {
		list = append(list, u.String())
	}
	for _, m := range s.MisportedPolicies() {
		list = append(list, m.String())
	}
	return list
}

const (
	// warnEvery is the longest that a warning which has no change of discovery as its cause is not in the log.
	warnEvery = 10 * time.Second
	// warnPause is the least time between two looks, and warnShare the part of one processor's time that they may take.
	warnPause, warnShare = time.Second, 100
)

// What is logged of warnings.
const (
	PolicyInVain = "a policy does not do what it was written for"
	LeadsNowhere = "connections lead nowhere by an address"
)

// Warn logs what warnings returns under message, each once when it begins, until ctx ends: it is asked after each change of discovery,
// and every ten seconds. What was said and is so no more is said again when it comes back.
func (w *Watcher) Warn(ctx context.Context, message string, warnings func() []string) {
	sub := w.store.Subscribe()
	defer sub.Close()
	every := time.NewTicker(warnEvery)
	defer every.Stop()
	said := map[string]bool{}
	for {
		began := time.Now()
		for _, text := range begun(said, warnings()) {
			w.Log.Warn().Str("why", text).Msg(message)
		}
		rest := time.NewTimer(max(warnPause, warnShare*time.Since(began)))
		select {
		case <-ctx.Done():
			rest.Stop()
			return
		case <-rest.C:
		}
		select {
		case <-ctx.Done():
			return
		case <-sub.C():
		case <-every.C:
		}
	}
}

// begun returns those of warnings that said does not have, and has said know those that there are. What stands behind
// their first colon, and a number before them, may change: it is the same warning.
func begun(said map[string]bool, warnings []string) (list []string) {
	there := map[string]bool{}
	for _, text := range warnings {
		subject, _, _ := strings.Cut(text, ": ")
		subject = strings.TrimLeft(subject, "0123456789")
		if there[subject] = true; !said[subject] {
			list = append(list, text)
		}
	}
	clear(said)
	for subject := range there {
		said[subject] = true
	}
	return list
}
