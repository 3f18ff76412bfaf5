package record

import (
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
)

func TestTheNewestExceptionsAreNamedAndTheRestIsANumber(t *testing.T) {
	epoch := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	var x Exceptions
	for n := range 100 {
		x.Set(mesh.EndpointID(n+1), Witness, epoch.Add(time.Duration(n)*time.Second))
	}
	x.Set(5, Witness, epoch.Add(time.Hour)) // as before: no news
	x.Set(7, Hop, epoch.Add(time.Hour))
	named, unnamed := x.List(epoch.Add(time.Hour))
	if len(named) != MaxExceptions || unnamed != 36 || named[0] != (Exception{Endpoint: 7, Cause: Hop}) || named[1] != (Exception{Endpoint: 100, Cause: Witness}) {
		t.Errorf("got %v and %d more", named[:2], unnamed)
	}
	x.Clear(7, epoch.Add(time.Hour))
	if named, unnamed = x.List(epoch.Add(time.Hour)); named[0].Endpoint != 100 || unnamed != 35 {
		t.Errorf("got %v and %d more", named[:1], unnamed)
	}
}

func TestWhatIsGoneLingersForAMinute(t *testing.T) {
	epoch := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	var x Exceptions
	for id, cause := range map[mesh.EndpointID]Cause{1: Terminating, 2: Gone, 3: NotReady, 4: Witness, 5: Gone} {
		x.Set(id, cause, epoch)
		x.Clear(id, epoch)
	}
	x.Back(5) // its address is in use again by the same workload
	want := []Exception{{Endpoint: 1, Cause: Terminating}, {Endpoint: 2, Cause: Gone}}
	if got, _ := x.List(epoch.Add(59 * time.Second)); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if next := x.Next(); !next.Equal(epoch.Add(Linger)) {
		t.Errorf("next change at %v, want %v", next.Sub(epoch), Linger)
	}
	if got, n := x.List(epoch.Add(Linger)); len(got) != 0 || n != 0 || len(x.of) != 0 {
		t.Errorf("after a minute: %v and %d more", got, n)
	}
	for n := range maxExceptions + 10 {
		x.Set(mesh.EndpointID(n+1), Gone, epoch)
		if n%2 == 0 {
			x.Clear(mesh.EndpointID(n+1), epoch)
		}
	}
	if len(x.of) != maxExceptions {
		t.Errorf("keeps %d, want %d", len(x.of), maxExceptions)
	}
}

var update = flag.Bool("update", false, "write testdata of messages that are not there yet; what is there is never replaced")

// Messages of earlier versions are read as they were meant. A file once checked
// in stays as it is: a new version adds its own.
func TestMessagesOfEarlierVersionsAreRead(t *testing.T) {
	export := sampleExport()
	export.Affinity, export.Headless = "", false // which they do not say
	network := sampleNetwork()
	network.QUIC = nil
	records := []Record{NetworkRecord(network), ExportRecord(hello, export), HealthRecord(hello, 80, Health{
		Ready: 10, Healthy: 8, ReadyCapacity: 10, HealthyCapacity: 8, Exceptions: []Exception{{Endpoint: 7, Cause: Witness}, {Endpoint: 9, Cause: Gone}}, Unnamed: 3,
	})}
	want := &Statement{Instance: Instance{1, 2, 3}, Count: 9, Watermark: 12, Root: Root{4, 5}, Since: 8, Removals: []Removal{{EncodeKey(Key{Kind: KindExport, Service: hello}), 12}}, Number: 77, Answers: []uint64{78, 79}, Synchronised: true}
	for n, r := range records {
		e, err := Encode(r)
		if err != nil {
			t.Fatal(err)
		}
		e.Sequence = uint64(9 + n)
		want.Changes = append(want.Changes, e)
	}
	path := filepath.Join("testdata", "statement-1.hex")
	if _, err := os.Stat(path); os.IsNotExist(err) && *update {
		b, err := want.Encode()
		if err == nil {
			err = os.MkdirAll("testdata", 0o755)
		}
		if err == nil {
			err = os.WriteFile(path, []byte(hex.EncodeToString(b)+"\n"), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeStatement(b)
	if err != nil {
		t.Fatal(err)
	}
	for n, e := range got.Changes {
		if r, err := e.Decode(); err != nil || !reflect.DeepEqual(r, records[n]) {
			t.Errorf("got %+v, %v\nwant %+v", r, err, records[n])
		}
	}
	got.Changes, want.Changes = nil, nil
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

// What people want to know of an exception travels with the newest of them; what cannot
// be shown is left out, and spoils nothing.
func TestDetailsOfTheNewestExceptionsTravel(t *testing.T) {
	epoch := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	var x Exceptions
	detail := Detail{Reason: "refused", Witness: "west-1", Since: epoch.Unix()}
	for n := range Detailed + 1 {
		x.Set(mesh.EndpointID(n+1), Witness, epoch.Add(time.Duration(n)*time.Second))
		x.Explain(mesh.EndpointID(n+1), detail)
	}
	x.Explain(99, detail) // it is no exception
	named, _ := x.List(epoch)
	for n, e := range named {
		if (e.Detail == detail) != (n < Detailed) {
			t.Errorf("exception %d: %+v; want details of the first %d", n, e, Detailed)
		}
	}
	h := Health{Ready: 20, Exceptions: []Exception{{Endpoint: 1, Cause: Witness, Detail: detail},
		{Endpoint: 2, Cause: Witness, Detail: Detail{Reason: "two words", Witness: "west\n2", Since: -5}},
		{Endpoint: 3, Cause: Witness, Detail: Detail{Reason: strings.Repeat("r", MaxName+1), Witness: "west-3"}}}}
	e, err := Encode(HealthRecord(hello, 80, h))
	if err != nil {
		t.Fatal(err)
	}
	e.Sequence = 1
	r, err := e.Decode()
	if err != nil {
		t.Fatal(err)
	}
	want := []Detail{detail, {}, {Witness: "west-3"}}
	for n, got := range r.Health.Exceptions {
		if got.Detail != want[n] {
			t.Errorf("exception %d: %+v, want %+v", n, got.Detail, want[n])
		}
	}
}
