package strictyaml

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

type validated struct {
	Name  string        `yaml:"name"`
	Every time.Duration `yaml:"every"`
	Port  uint16        `yaml:"port"`
}

func (v validated) Validate() ([]string, error) {
	var c Check
	c.Required("name", v.Name, "write one")
	c.Positive("every", v.Every)
	c.Below("ports", errors.Join(errors.New("first: bad"), errors.New("second: worse")))
	c.Field("nothing", nil)
	c.Join(nil)
	if v.Port == 7 {
		return []string{"port 7 is odd"}, nil
	}
	return nil, c.Err()
}

func TestLoadValidNamesTheFileBeforeEachMistakeAndKeepsTheOrder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	if err := os.WriteFile(path, []byte("port: 8\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err := LoadValid(path, validated{})
	want := path + ":1: name: is empty: write one\n" + path + ":1: every: 0s: must be positive, for example 5s\n" + path + ":1: ports.first: bad\n" + path + ":1: ports.second: worse"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if err := os.WriteFile(path, []byte("port: 7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, warnings, err := LoadValid(path, validated{Name: "default"})
	if err != nil || len(warnings) != 1 || c.Name != "default" || c.Port != 7 {
		t.Errorf("got %+v, %q, %v", c, warnings, err)
	}
	if err := os.WriteFile(path, []byte("prot: 7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := LoadValid(path, validated{}); err == nil {
		t.Error("an unknown key was taken")
	}
}

func TestChangedNamesKeysInTheOrderOfTheStruct(t *testing.T) {
	half, other := 0.5, 0.5
	a := sample{Network: "west", Ratio: &half, Words: []string{"a"}, Internal: 1}
	b := sample{Network: "west", Ratio: &other, Words: []string{"a"}}
	if got := Changed(a, b); got != nil {
		t.Errorf("got %q; want nothing", got)
	}
	b.Ratio, b.Words, b.Nested.Outlier.Alpha, b.Port = nil, []string{"b"}, 0.1, 3
	if got, want := strings.Join(Changed(a, b), " "), "port words ratio nested.alpha"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
