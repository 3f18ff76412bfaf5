package logging

import (
	"errors"
	"fmt"
	"testing"

	"github.com/rs/zerolog"
)

func TestOnceIsBounded(t *testing.T) {
	l := Once{Log: zerolog.Nop()}
	for i := range 3 * maxTroubles {
		l.Warn(fmt.Sprint(i), "x", errors.New("x"), func(*zerolog.Event) {})
	}
	if len(l.seen) > maxTroubles {
		t.Errorf("remembers %d troubles, want at most %d", len(l.seen), maxTroubles)
	}
}
