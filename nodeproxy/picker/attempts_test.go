package picker

import (
	"testing"
	"time"
)

func TestAttemptsCountSinceTheLastSuccessAndAreBounded(t *testing.T) {
	var a attempts[int]
	now := time.Unix(0, 0)
	for range 3 {
		a.failed(1, Outcome{Reason: "identity", Error: "who"}, now)
	}
	if x := a.get(1); x == nil || x.Times != 3 || x.Reason != "identity" || x.Error != "who" || x.Fault {
		t.Fatalf("got %+v, want three", x)
	}
	a.succeeded(2)
	if a.get(1) == nil {
		t.Error("the success of another took it away")
	}
	a.succeeded(1)
	if x := a.get(1); x != nil || a.some.Load() {
		t.Errorf("%+v after a success", x)
	}
	for k := range maxAttempts + 10 {
		a.failed(k, Outcome{Reason: "identity"}, now.Add(time.Duration(k)*time.Second))
	}
	if n := len(a.of); n != maxAttempts {
		t.Errorf("%d are remembered, want %d", n, maxAttempts)
	}
	if a.get(9) != nil || a.get(10) == nil {
		t.Error("not those that failed longest ago were forgotten")
	}
}
