package federation

import (
	"fmt"
	"hash/fnv"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/isthmus-mesh/isthmus/mesh"
)

var epoch = time.Unix(1_000_000, 0)

func summary(origin string, incarnation, sequence uint64, healthy uint32, age time.Duration) Record {
	return Record{
		Network: "west", Origin: Origin{origin, incarnation}, Sequence: sequence, Age: age,
		Summary: &SummaryFact{Service: "shop.default.svc", Port: 80, Ready: 10, Healthy: healthy, ReadyCapacity: 10, HealthyCapacity: healthy},
	}
}

func readSummary(t *testing.T, table *Table, now time.Time) (uint32, time.Duration, bool) {
	t.Helper()
	s, age, ok := table.Summary("west", "shop.default.svc", 80, now)
	return s.Healthy, age, ok
}

// drawRecord draws from a small universe, so that copies, conflicts and stale
// incarnations are common. What an origin says under one stamp is always the
// same; copies differ in the time that relays have added.
func drawRecord(t *rapid.T) Record {
	r := Record{
		Network:  "west",
		Origin:   Origin{rapid.SampledFrom([]string{"west/gw-1", "west/gw-2"}).Draw(t, "origin"), rapid.Uint64Range(1, 3).Draw(t, "incarnation")},
		Sequence: rapid.Uint64Range(1, 5).Draw(t, "sequence"),
	}
	subject := rapid.IntRange(0, 3).Draw(t, "subject")
	h := fnv.New32()
	fmt.Fprint(h, r.Origin, r.Sequence, subject)
	content := h.Sum32() % 11
	relayed := time.Duration(rapid.IntRange(0, 3).Draw(t, "relayed")) * time.Second
	r.Age, r.Silence = time.Duration(content)*time.Second+relayed, relayed
	if subject < 2 {
		r.Endpoint = &EndpointFact{Endpoint: mesh.EndpointID(7 + subject), Port: 8080, State: FactState(content % 3), Health: float64(content) / 11}
	} else {
		r.Summary = &SummaryFact{Service: fmt.Sprint("svc-", subject), Port: 80, Ready: 10, Healthy: content % 11}
	}
	return r
}

func merged(now time.Time, records ...[]Record) *Table {
	t := NewTable(time.Hour)
	for _, r := range slices.Concat(records...) {
		t.Merge(r, now)
	}
	return t
}

// twin is the law as a sentence: of the newest incarnation of each origin, the
// highest sequence of each key, with the oldest ages among its copies.
func twin(records []Record) []Record {
	newest := map[string]uint64{}
	for _, r := range records {
		newest[r.Origin.Name] = max(newest[r.Origin.Name], r.Origin.Incarnation)
	}
	best := map[Key]Record{}
	for _, r := range records {
		if r.Origin.Incarnation < newest[r.Origin.Name] {
			continue
		}
		old, ok := best[r.Key()]
		switch {
		case !ok || r.Sequence > old.Sequence:
			best[r.Key()] = r
		case r.Sequence == old.Sequence:
			old.Age, old.Silence = max(old.Age, r.Age), max(old.Silence, r.Silence)
			best[r.Key()] = old
		}
	}
	return slices.SortedFunc(maps.Values(best), func(a, b Record) int { return compareKeys(a.Key(), b.Key()) })
}

func TestMergeDependsOnTheSetOfRecordsOnly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		records := rapid.SliceOfN(rapid.Custom(drawRecord), 0, 40).Draw(t, "records")
		shuffled := rapid.Permutation(records).Draw(t, "order")
		var replayed []Record
		if len(records) > 0 {
			replayed = rapid.SliceOfN(rapid.SampledFrom(records), 0, 20).Draw(t, "replayed")
		}
		want := twin(records)
		for name, got := range map[string][]Record{
			"in order":            merged(epoch, records).Records(epoch),
			"shuffled":            merged(epoch, shuffled).Records(epoch),
			"shuffled and replay": merged(epoch, shuffled, replayed).Records(epoch),
			"twice":               merged(epoch, shuffled, records).Records(epoch),
		} {
			if !(len(got) == 0 && len(want) == 0) && !reflect.DeepEqual(got, want) {
				t.Fatalf("%s: got %v\nwant %v", name, got, want)
			}
		}
	})
}

func TestMergeOfTablesIsAssociativeAndCommutative(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string) []Record {
			return rapid.SliceOfN(rapid.Custom(drawRecord), 0, 15).Draw(t, label)
		}
		a, b, c := draw("a"), draw("b"), draw("c")
		join := func(x, y []Record) []Record {
			return merged(epoch, merged(epoch, x).Records(epoch), merged(epoch, y).Records(epoch)).Records(epoch)
		}
		left, right := join(join(a, b), c), join(a, join(b, c))
		if !reflect.DeepEqual(left, right) {
			t.Fatalf("(a+b)+c = %v\na+(b+c) = %v", left, right)
		}
		if ab, ba := join(a, b), join(b, a); !reflect.DeepEqual(ab, ba) {
			t.Fatalf("a+b = %v\nb+a = %v", ab, ba)
		}
	})
}

func TestTimeOnTheWayAddsToTheAge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := summary("west/gw-1", 1, 1, 8, time.Duration(rapid.IntRange(0, 5000).Draw(t, "age"))*time.Millisecond)
		now, want := epoch, r.Age
		for range rapid.IntRange(1, 6).Draw(t, "relays") {
			relay := NewTable(time.Hour)
			relay.Merge(r, now)
			pause := time.Duration(rapid.IntRange(0, 9000).Draw(t, "pause")) * time.Millisecond
			now, want = now.Add(pause), want+pause
			r = relay.Records(now)[0]
			if r.Age != want || r.Silence != now.Sub(epoch) {
				t.Fatalf("after %v: age %v silence %v, want age %v silence %v", now.Sub(epoch), r.Age, r.Silence, want, now.Sub(epoch))
			}
			b, err := Encode([]Record{r})
			if err != nil {
				t.Fatal(err)
			}
			wire, _, err := Decode(b)
			if err != nil {
				t.Fatal(err)
			}
			if r = wire[0]; r.Age < want {
				t.Fatalf("age %v after the wire, want at least %v", r.Age, want)
			}
		}
	})
}

func TestOutcomes(t *testing.T) {
	table := NewTable(time.Minute)
	for i, step := range []struct {
		record Record
		want   Outcome
	}{
		{summary("west/gw-1", 2, 5, 8, 0), Newer},
		{summary("west/gw-1", 2, 5, 8, 0), Duplicate},
		{summary("west/gw-1", 2, 4, 9, 0), Older},
		{summary("west/gw-1", 2, 6, 8, 0), Refreshed},
		{summary("west/gw-1", 2, 7, 7, 0), Newer},
		{summary("west/gw-1", 1, 99, 1, 0), Older},
		{summary("west/gw-1", 3, 1, 7, 0), Newer},
		{summary("west/gw-1", 2, 100, 1, 0), Older},
		{summary("west/gw-2", 1, 0, 8, 0), Rejected},
		{summary("west/gw-2", 1, 1, 11, 0), Rejected},
		{Record{Network: "west", Origin: Origin{"west/gw-2", 1}, Sequence: 1, Silence: 2 * time.Minute, Summary: summary("", 0, 0, 1, 0).Summary}, Expired},
	} {
		if got := table.Merge(step.record, epoch); got != step.want {
			t.Errorf("step %d: got %v, want %v", i, got, step.want)
		}
	}
}

func TestNewIncarnationReplacesAllItSaidBefore(t *testing.T) {
	table := NewTable(0)
	other := summary("west/gw-1", 1, 9, 3, 0)
	other.Summary = &SummaryFact{Service: "other", Port: 80, Ready: 3, Healthy: 3}
	table.Merge(other, epoch)
	table.Merge(summary("west/gw-1", 1, 9, 3, 0), epoch)
	table.Merge(summary("west/gw-1", 2, 1, 8, 0), epoch)
	if n := table.Len(); n != 1 {
		t.Fatalf("got %d records, want only that of incarnation 2: %v", n, table.Records(epoch))
	}
	if healthy, _, _ := readSummary(t, table, epoch); healthy != 8 {
		t.Errorf("healthy: got %d, want 8", healthy)
	}
}

func TestYoungestEvidenceWinsOverDeadGateway(t *testing.T) {
	table := NewTable(time.Minute)
	table.Merge(summary("west/gw-1", 1, 40, 10, 0), epoch) // then gw-1 dies
	table.Merge(summary("west/gw-2", 1, 3, 10, 5*time.Second), epoch)
	if healthy, age, _ := readSummary(t, table, epoch.Add(time.Second)); healthy != 10 || age != time.Second {
		t.Errorf("both alive: got healthy %d age %v, want gw-1's 10, 1s", healthy, age)
	}
	table.Merge(summary("west/gw-2", 1, 4, 8, 0), epoch.Add(2*time.Second))
	if healthy, age, _ := readSummary(t, table, epoch.Add(3*time.Second)); healthy != 8 || age != time.Second {
		t.Errorf("gw-1 frozen: got healthy %d age %v, want gw-2's 8, 1s", healthy, age)
	}
}

func TestRefreshDoesNotMakeEvidenceYounger(t *testing.T) {
	table := NewTable(time.Minute)
	table.Merge(summary("west/gw-1", 1, 1, 8, 0), epoch)
	table.Merge(summary("west/gw-2", 1, 1, 9, 0), epoch.Add(5*time.Second))
	refresh := summary("west/gw-1", 1, 2, 8, 10*time.Second)
	if got := table.Merge(refresh, epoch.Add(10*time.Second)); got != Refreshed {
		t.Fatalf("refresh: got %v", got)
	}
	if healthy, age, _ := readSummary(t, table, epoch.Add(10*time.Second)); healthy != 9 || age != 5*time.Second {
		t.Errorf("got healthy %d age %v, want gw-2's 9 with age 5s", healthy, age)
	}
}

func TestSilenceDecaysToUnknownFromTheStampNotTheEvidence(t *testing.T) {
	table := NewTable(time.Minute)
	table.Merge(summary("west/gw-1", 1, 1, 0, time.Hour), epoch)
	if _, age, ok := readSummary(t, table, epoch.Add(time.Minute)); !ok || age != time.Hour+time.Minute {
		t.Errorf("old evidence, fresh stamp: got ok %v age %v, want known", ok, age)
	}
	if _, _, ok := readSummary(t, table, epoch.Add(time.Minute+1)); ok {
		t.Error("silent beyond the TTL: got a belief, want unknown")
	}
	if got := len(table.Records(epoch.Add(time.Minute + 1))); got != 0 {
		t.Errorf("got %d records to pass on, want none", got)
	}
}

func TestExpiredRecordDoesNotComeBackByReplay(t *testing.T) {
	table := NewTable(time.Minute)
	table.Merge(summary("west/gw-1", 1, 7, 0, 0), epoch)
	later := epoch.Add(2 * time.Minute)
	if gone := table.Expire(later); len(gone) != 1 || table.Len() != 0 {
		t.Fatalf("expired %v, %d left", gone, table.Len())
	}
	if got := table.Merge(summary("west/gw-1", 1, 7, 0, 0), later); got != Older {
		t.Errorf("replay: got %v, want older", got)
	}
	if got := table.Merge(summary("west/gw-1", 1, 8, 8, 0), later); got != Newer {
		t.Errorf("next word of the origin: got %v, want newer", got)
	}
}

func TestLimitsBoundMemory(t *testing.T) {
	table := NewTable(0)
	table.SetLimits(Limits{PerOrigin: 3, PerNetwork: 5, Origins: 3})
	say := func(origin, service string) Outcome {
		r := summary(origin, 1, 1, 1, 0)
		r.Summary = &SummaryFact{Service: service, Port: 80, Ready: 1, Healthy: 1}
		return table.Merge(r, epoch)
	}
	for i := range 3 {
		if got := say("west/gw-1", fmt.Sprint(i)); got != Newer {
			t.Fatalf("record %d: %v", i, got)
		}
	}
	if got := say("west/gw-1", "3"); got != Full {
		t.Errorf("fourth of an origin: got %v, want full", got)
	}
	say("west/gw-2", "0")
	say("west/gw-2", "1")
	if got := say("west/gw-2", "2"); got != Full {
		t.Errorf("sixth of a network: got %v, want full", got)
	}
	say("west/gw-3", "0") // full, but an origin
	if got := say("west/gw-1", "0"); got != Duplicate {
		t.Errorf("known record at the limit: got %v, want duplicate", got)
	}
	table.Drop("west/gw-1")
	if got := say("west/gw-2", "2"); got != Newer {
		t.Errorf("after a drop: got %v, want newer", got)
	}
	if table.Len() != 3 || len(table.Subject(SummarySubject("west", "0", 80), epoch)) != 1 {
		t.Errorf("after a drop: %d records, subject 0: %v", table.Len(), table.Subject(SummarySubject("west", "0", 80), epoch))
	}
}

func BenchmarkMerge10000(b *testing.B) {
	const origins, services = 20, 500
	records := make([]Record, 0, origins*services)
	for o := range origins {
		for s := range services {
			r := summary(fmt.Sprintf("west/gw-%d", o), 1, 1, 8, 0)
			r.Summary = &SummaryFact{Service: fmt.Sprintf("svc-%d.default.svc.cluster.local", s), Port: 80, Ready: 10, Healthy: 8}
			records = append(records, r)
		}
	}
	b.Run("new", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			table := NewTable(0)
			for _, r := range records {
				table.Merge(r, epoch)
			}
		}
	})
	b.Run("refreshed", func(b *testing.B) {
		b.ReportAllocs()
		table, sequence := NewTable(0), uint64(0)
		for b.Loop() {
			sequence++
			for _, r := range records {
				r.Sequence = sequence
				table.Merge(r, epoch)
			}
		}
	})
	b.Run("duplicate", func(b *testing.B) {
		b.ReportAllocs()
		table := NewTable(0)
		for b.Loop() {
			for _, r := range records {
				table.Merge(r, epoch)
			}
		}
	})
}

func BenchmarkSummary(b *testing.B) {
	table := NewTable(0)
	for o := range 3 {
		table.Merge(summary(fmt.Sprintf("west/gw-%d", o), 1, 1, 8, time.Duration(o)), epoch)
	}
	b.ReportAllocs()
	for b.Loop() {
		table.Summary("west", "shop.default.svc", 80, epoch)
	}
}
