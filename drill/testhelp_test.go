package drill

import (
	"os"
	"testing"
	"time"
)

// twoNetworks is a scenario with a refusing fault from 4 s to 8 s of 12 s.
const twoNetworks = `
name: small
duration: 12s
networks:
  - {name: east, gateways: 1, nodes: 2}
  - {name: west, gateways: 2, nodes: 2, pods: 4}
  - {name: north, pods: 2}
services:
  - name: echo
    ports: [{name: A, port: 8080}, {name: B, port: 8081, targetPort: 9081}]
clients: [{network: east}]
traffic: {rate: 50, hold: {fraction: 0.1, for: 2s}}
faults:
  - {name: sick, kind: refuse, at: 4s, until: 8s, target: {network: west, names: [west-2], port: A}}
arms: [{name: isthmus}]
`

func mustParse(t *testing.T, text string) *Scenario {
	t.Helper()
	s, err := Parse("small.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// small returns a record of twoNetworks in which the fault ran as planned and
// nothing else happened.
func small(t *testing.T, text string) *Record {
	t.Helper()
	s := mustParse(t, text)
	r := &Record{Layout: NewLayout(s, 99), Arm: s.Arms[0]}
	for i, f := range s.Faults {
		o := Outage{Fault: f, Victims: r.Layout.VictimsOf(i), Begin: f.At, Effect: f.At + time.Millisecond, Proof: "as planned"}
		if f.Until != 0 {
			o.Heal, o.Healed = f.Until, f.Until+time.Millisecond
		}
		r.Outages = append(r.Outages, o)
	}
	return r
}

func ms(n float64) time.Duration { return time.Duration(n * float64(time.Millisecond)) }

// answer adds an attempt at t that pod answered after 10 ms.
func (r *Record) answer(at time.Duration, pod string, port int) {
	r.Attempts = append(r.Attempts, Attempt{Arrival: Arrival{At: at, Port: port}, Started: at, Done: at + ms(10), Pod: pod})
}

func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("%s differs; if the change is meant: UPDATE_GOLDEN=1 go test ./drill\ngot:\n%s", path, got)
	}
}
