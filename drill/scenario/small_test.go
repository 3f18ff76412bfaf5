package scenario

import (
	_ "embed"
	"testing"
)

// twoNetworks is a scenario with a refusing fault from 4 s to 8 s of 12 s.
//
//go:embed testdata/small.yaml
var twoNetworks string

func mustParse(t *testing.T, text string) *Scenario {
	t.Helper()
	s, err := Parse("small.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}
