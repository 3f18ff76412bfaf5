package health

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/isthmus-mesh/isthmus/mesh"
)

func TestCapExceptions(t *testing.T) {
	ids := func(v ...mesh.EndpointID) []mesh.EndpointID { return v }
	cases := []struct {
		name     string
		ready    int
		reported []mesh.EndpointID
		own      []mesh.EndpointID
		want     []mesh.EndpointID
	}{
		{"nothing reported", 10, nil, nil, nil},
		{"below half, sorted, once", 10, ids(5, 3, 5, 4), nil, ids(3, 4, 5)},
		{"exactly half", 4, ids(9, 8), nil, ids(8, 9)},
		{"half rounds down", 5, ids(4, 3, 2), nil, ids(2, 3)},
		{"everything reported: half stays", 4, ids(1, 2, 3, 4), nil, ids(1, 2)},
		{"own evidence does not use up the cap", 4, ids(1, 2, 3, 4), ids(1, 4), ids(1, 2, 3, 4)},
		{"own evidence goes beyond half", 2, ids(1, 2), ids(1, 2), ids(1, 2)},
		{"one endpoint is never out by hearsay", 1, ids(1), nil, ids()},
		{"one endpoint is out by own evidence", 1, ids(1), ids(1), ids(1)},
		{"no ready member", 0, ids(1), nil, ids()},
		{"a negative total is none", -3, ids(1), nil, ids()},
		{"the unknown endpoint is nobody", 10, ids(0, 1), ids(0), ids(1)},
	}
	for _, c := range cases {
		before := slices.Clone(c.reported)
		own := func(id mesh.EndpointID) bool { return slices.Contains(c.own, id) }
		if got := (Reported{c.ready, c.reported}).Honoured(own); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
		if !slices.Equal(before, c.reported) {
			t.Errorf("%s: the argument was changed to %v", c.name, c.reported)
		}
	}
}

func TestCapExceptionsProperties(t *testing.T) {
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 3))
		total := rng.IntN(20)
		var reported []mesh.EndpointID
		for range rng.IntN(30) {
			reported = append(reported, mesh.EndpointID(1+rng.IntN(25)))
		}
		own := func(id mesh.EndpointID) bool { return id%4 == 0 }
		got := CapExceptions(total, reported, own)
		hearsay := 0
		for _, id := range got {
			if !slices.Contains(reported, id) {
				t.Errorf("seed %d: %v was not reported", seed, id)
			}
			if !own(id) {
				hearsay++
			}
		}
		for _, id := range reported {
			if own(id) && !slices.Contains(got, id) {
				t.Errorf("seed %d: own evidence on %v was not honoured", seed, id)
			}
		}
		if hearsay > total/2 {
			t.Errorf("seed %d: %d of %d out by hearsay", seed, hearsay, total)
		}
		rng.Shuffle(len(reported), func(i, j int) { reported[i], reported[j] = reported[j], reported[i] })
		if again := CapExceptions(total, reported, own); !slices.Equal(got, again) {
			t.Errorf("seed %d: another order gave %v instead of %v", seed, again, got)
		}
	}
}
