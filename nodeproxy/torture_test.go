package nodeproxy

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

var (
	tortureSeed     = flag.Uint64("torture.seed", 0, "run the torture's schedule of this seed alone")
	tortureSeeds    = flag.Int("torture.seeds", 0, "how many seeds the torture runs, from torture.first on")
	tortureFirst    = flag.Uint64("torture.first", 1, "first seed")
	tortureSchedule = flag.String("torture.schedule", "", "replay the schedule in this file, as the torture has printed it")
)

// TestTorture runs random schedules over the whole life of sessions and streams
// and compares what the applications see with two TCP connections. A schedule that
// fails is shrunk and printed.
func TestTorture(t *testing.T) {
	env := func(name string) uint64 {
		n, _ := strconv.ParseUint(os.Getenv(name), 10, 64)
		return n
	}
	if file := *tortureSchedule; file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s, err := parseSchedule(string(text))
		if err != nil {
			t.Fatal(err)
		}
		torture(t, s)
		return
	}
	if seed := max(*tortureSeed, env("TORTURE_SEED")); seed != 0 {
		torture(t, generate(seed))
		return
	}
	seeds := uint64(defaultSeeds)
	if n := max(uint64(*tortureSeeds), env("TORTURE_SEEDS")); n > 0 {
		seeds = n
	}
	first := max(*tortureFirst, env("TORTURE_FIRST"))
	var next atomic.Uint64
	var failed atomic.Bool
	next.Store(first)
	for i := range runtime.GOMAXPROCS(0) {
		t.Run(fmt.Sprint("worker ", i+1), func(t *testing.T) {
			t.Parallel()
			for !failed.Load() {
				seed := next.Add(1) - 1
				if seed >= first+seeds {
					return
				}
				if torture(t, generate(seed)); t.Failed() {
					failed.Store(true)
				}
			}
		})
	}
}

// torture runs s and, if it fails, reports the smallest schedule that does.
func torture(t *testing.T, s schedule) {
	t.Helper()
	wrong := watched(t, s, zerolog.Nop())
	if len(wrong) == 0 {
		return
	}
	t.Errorf("seed %d: %v", s.world.Seed, wrong[0])
	f := finding{schedule: s, wrong: wrong}
	f.shrink(t)
	small, wrong := f.schedule, f.wrong
	t.Errorf("shrunk from %d to %d steps; put it into a file and replay it with -torture.schedule:\n%s", len(s.steps), len(small.steps), small)
	for _, err := range wrong {
		t.Errorf("it shows: %v", err)
	}
	t.Logf("node proxies say:\n%s", f.log)
}

// shrinkTries is how often a schedule runs before it counts as one that does not
// fail: what happens at one instant of virtual time happens in any order.
const shrinkTries = 10

// finding is a schedule that fails, what was wrong, and what the node proxies logged
// meanwhile.
type finding struct {
	schedule schedule
	wrong    []error
	log      string
}

// fails runs a schedule and, if it fails, makes it the finding.
func (f *finding) fails(t *testing.T, try schedule) bool {
	for range shrinkTries {
		var log bytes.Buffer
		if wrong := watched(t, try, zerolog.New(zerolog.SyncWriter(&log)).Level(zerolog.DebugLevel)); len(wrong) > 0 {
			*f = finding{try, wrong, log.String()}
			return true
		}
	}
	return false
}

// shrink drops steps for as long as the schedule fails.
func (f *finding) shrink(t *testing.T) {
	f.fails(t, f.schedule) // for its log
	limit := time.Now().Add(time.Minute)
	for conn := range maxTortured { // whole connections first
		f.without(t, func(_ int, s step) bool { return !s.op.onLink() && s.conn == conn })
	}
	for size := len(f.schedule.steps) / 2; size > 0; {
		dropped := false
		for at := 0; at < len(f.schedule.steps) && time.Now().Before(limit); {
			if f.without(t, func(i int, _ step) bool { return i >= at && i < at+size }) {
				dropped = true
			} else {
				at += size
			}
		}
		if !dropped || size > 1 {
			size /= 2
		}
	}
}

// without drops those steps if the schedule fails without them too. What follows
// keeps its time.
func (f *finding) without(t *testing.T, drop func(int, step) bool) bool {
	try := schedule{world: f.schedule.world}
	late := time.Duration(0)
	for i, s := range f.schedule.steps {
		if drop(i, s) {
			late += s.after
			continue
		}
		s.after += late
		late = 0
		try.steps = append(try.steps, s)
	}
	return len(try.steps) < len(f.schedule.steps) && f.fails(t, try)
}

// hangTime is how long one schedule may take by the wall clock: then somebody
// spins, or waits for something that synctest cannot see.
const hangTime = 2 * time.Minute

// watched runs s under a watchdog.
func watched(t *testing.T, s schedule, log zerolog.Logger) []error {
	dog := time.AfterFunc(hangTime, func() {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		panic(fmt.Sprintf("seed %d has run for %v by the wall clock: virtual time stands still. Schedule:\n%s\n%s", s.world.Seed, hangTime, s, stacks))
	})
	defer dog.Stop()
	return runSchedule(t, s, log)
}

func TestTorturedSchedulesCanBeReplayed(t *testing.T) {
	for seed := range uint64(200) {
		s := generate(seed)
		again, err := parseSchedule(s.String())
		if err != nil {
			t.Fatal(err)
		}
		if got, want := again.String(), s.String(); got != want {
			t.Fatalf("seed %d: printed\n%s\nread\n%s", seed, want, strings.TrimSpace(got))
		}
	}
}
