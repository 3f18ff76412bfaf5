package logging

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
)

func TestPeerLimitsAllowOneLinePerInterval(t *testing.T) {
	l := PeerLimits{Every: time.Minute}
	now := time.Unix(1000, 0)
	if n, ok := l.Allow("p", "a", now); !ok || n != 0 {
		t.Errorf("first line: %d, %t", n, ok)
	}
	for range 5 {
		if _, ok := l.Allow("p", "a", now.Add(59*time.Second)); ok {
			t.Error("second line within the interval")
		}
	}
	if _, ok := l.Allow("p", "b", now); !ok {
		t.Error("another key was suppressed")
	}
	if n, ok := l.Allow("p", "a", now.Add(time.Minute)); !ok || n != 5 {
		t.Errorf("after the interval: %d suppressed, %t; want 5, true", n, ok)
	}
}

func TestPeerWithNewKeysSilencesNoOther(t *testing.T) {
	l := PeerLimits{Every: time.Minute}
	now := time.Unix(1000, 0)
	through := 0
	for i := range 100_000 {
		if _, ok := l.Allow("loud", strconv.Itoa(i), now); ok {
			through++
		}
	}
	if through != keysPerPeer+1 {
		t.Errorf("%d lines of one peer; want %d", through, keysPerPeer+1)
	}
	for _, peer := range []string{"quiet", "other"} {
		if _, ok := l.Allow(peer, "1", now); !ok {
			t.Errorf("the first line of %s was suppressed", peer)
		}
		if _, ok := l.Allow(peer, "1", now); ok {
			t.Errorf("the second line of %s about the same key was allowed", peer)
		}
	}
	if n, ok := l.Allow("loud", "0", now.Add(time.Minute)); !ok || n != 0 {
		t.Errorf("after the interval: %d, %t", n, ok)
	}
}

func TestPeerLimitsAreBounded(t *testing.T) {
	l := PeerLimits{Every: time.Minute}
	now := time.Unix(1000, 0)
	through := 0
	for i := range 10_000 {
		if _, ok := l.Allow(strconv.Itoa(i), "same", now); ok {
			through++
		}
	}
	if through != maxPeers+1 || len(l.peers) != maxPeers+1 {
		t.Errorf("%d lines, %d peers; want %d", through, len(l.peers), maxPeers+1)
	}
	if _, ok := l.Allow("later", "same", now.Add(time.Hour)); !ok || len(l.peers) != 1 {
		t.Errorf("%d peers after an hour; want the idle ones removed", len(l.peers))
	}
}

// The line that reports suppressed lines has their level, so that log.level does not drop it alone.
func TestSuppressedLinesReportedAtTheirLevel(t *testing.T) {
	defer zerolog.SetGlobalLevel(zerolog.GlobalLevel())
	for _, level := range []zerolog.Level{zerolog.DebugLevel, zerolog.InfoLevel, zerolog.WarnLevel, zerolog.ErrorLevel} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			log := zerolog.New(zerolog.SyncWriter(&out))
			zerolog.SetGlobalLevel(level)
			l := &PeerLimits{Every: time.Second, Log: &log}
			for range 3 {
				l.Sample(log.Debug(), "p", "debug").Msg("line")
				l.Sample(log.WithLevel(level), "p", "a").Msg("line")
			}
			time.Sleep(2 * flushEvery)
			synctest.Wait()
			found := false
			for d := json.NewDecoder(&out); d.More(); {
				var line struct {
					Message, Level, About string
					Suppressed            int
				}
				if err := d.Decode(&line); err != nil {
					t.Fatal(err)
				}
				if line.About == "a" {
					found = line.Message == "log lines suppressed" && line.Suppressed == 2 && line.Level == level.String()
				} else if line.About != "" && level != zerolog.DebugLevel {
					t.Errorf("at %v lines are reported that were not suppressed: %+v", level, line)
				}
			}
			if !found {
				t.Errorf("at %v no line of that level reports 2 suppressed lines:\n%s", level, out.String())
			}
		})
	}
}

// Peers trigger lines at random, in bursts and with pauses. Within any time d a peer and
// key has at most Burst + d/Every lines, and in the end the lines written and the numbers
// suppressed are all that were triggered.
func TestPeerLimitsReportEachSuppressedLine(t *testing.T) {
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 7))
			var out bytes.Buffer
			log := zerolog.New(zerolog.SyncWriter(&out))
			l := &PeerLimits{Every: time.Duration(1+rng.IntN(30)) * time.Second, Burst: rng.IntN(30), Keys: rng.IntN(4), Log: &log}
			triggered := 0
			written := map[string][]time.Time{}
			for range 300 {
				peer, key := fmt.Sprint(rng.IntN(3)), fmt.Sprint(rng.IntN(3))
				for range rng.IntN(40) {
					triggered++
					if e := l.Sample(log.Warn(), peer, key); e != nil {
						e.Msg("line")
						if l.Keys != 1 && l.Keys != 2 { // otherwise several keys share a bucket
							written[peer+key] = append(written[peer+key], time.Now())
						}
					}
				}
				if rng.IntN(3) == 0 {
					time.Sleep(time.Duration(rng.Int64N(int64(2 * l.Every))))
				}
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			sum, lines := 0, 0
			for d := json.NewDecoder(&out); d.More(); {
				var line struct {
					Message    string
					Suppressed int
				}
				if err := d.Decode(&line); err != nil {
					t.Fatal(err)
				}
				if line.Message == "line" {
					lines++
				}
				sum += line.Suppressed
			}
			if sum+lines != triggered {
				t.Errorf("seed %d: %d lines and %d suppressed of %d triggered", seed, lines, sum, triggered)
			}
			for about, at := range written {
				for i := range at {
					for j := i; j < len(at); j++ {
						if most := max(1, l.Burst) + int(at[j].Sub(at[i])/l.Every) + 1; j-i+1 > most {
							t.Fatalf("seed %d: %d lines about %s within %v; want at most %d", seed, j-i+1, about, at[j].Sub(at[i]), most)
						}
					}
				}
			}
		})
	}
}
