package strictyaml

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

type odd struct {
	Name  string        `yaml:"name"`
	Every time.Duration `yaml:"every" env:"STRICTYAML_TEST_EVERY"`
	Limit time.Duration `yaml:"limit"`
	Ports []struct {
		Port uint16 `yaml:"port"`
	} `yaml:"ports"`
}

func (o odd) Validate() ([]string, error) {
	var c Check
	c.Required("name", o.Name, "write one")
	c.Positive("every", o.Every)
	if o.Every >= o.Limit {
		c.Fail("every", "%v: must be below limit %v", o.Every, o.Limit)
	}
	for i, p := range o.Ports {
		if p.Port == 0 {
			c.Fail("ports["+string(rune('0'+i))+"].port", "0: want a port")
		}
	}
	return nil, c.Err()
}

func lines(t *testing.T, text string, also ...func(odd) error) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err := LoadValid(path, odd{Every: time.Second, Limit: time.Minute}, also...)
	if err == nil {
		t.Fatal("no mistake was found")
	}
	return strings.Split(strings.ReplaceAll(err.Error(), path, "a.yaml"), "\n")
}

// What cannot be read does not hide what cannot be, nor the other way round; and
// nothing is told that may only follow from something else.
func TestOnePassFindsEveryMistake(t *testing.T) {
	known := func(odd) error { return errors.New(`name: "shp" is not known: did you mean "shop"?`) }
	for _, c := range []struct {
		name, text string
		also       []func(odd) error
		want       []string
	}{
		{"kinds, keys and values", "colour: red\nevery: 0s\nports:\n  - port: 80\n  - port: 0\n  - port: http\nname: []\n", nil, []string{
			`a.yaml:1: unknown key "colour": known here: name, every, limit, ports`,
			"a.yaml:2: every: 0s: must be positive, for example 5s",
			"a.yaml:5: ports[1].port: 0: want a port",
			`a.yaml:6: ports[2].port: "http": want a whole number from 0 to 65535`,
			"a.yaml:7: name: is a list: want text",
		}},
		{"a bound that was not read", "name: shop\nlimit: often\nevery: 2m\n", nil, []string{
			`a.yaml:2: limit: "often": want a number with a unit, such as 250ms, 10s or 1h`,
		}},
		{"a key with a slip is not missing too", "nmae: shop\nevery: 2m\n", nil, []string{
			`a.yaml:1: unknown key "nmae": did you mean "name"?`,
			"a.yaml:2: every: 2m0s: must be below limit 1m0s",
		}},
		{"a second key with a slip hides nothing", "every: 0s\nevry: 5s\nname: shop\n", nil, []string{
			"a.yaml:1: every: 0s: must be positive, for example 5s",
			`a.yaml:2: unknown key "evry": did you mean "every"?`,
		}},
		{"names that others know", "every: 0s\nname: shp\n", []func(odd) error{known}, []string{
			"a.yaml:1: every: 0s: must be positive, for example 5s",
			`a.yaml:2: name: "shp" is not known: did you mean "shop"?`,
		}},
		{"another file", "every: 0s\nname: shp\n", []func(odd) error{func(odd) error { return errors.New("b.yaml:3: ports: is empty") }}, []string{
			"a.yaml:1: every: 0s: must be positive, for example 5s",
			"b.yaml:3: ports: is empty",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range 5 { // the order is always the same
				if got := lines(t, c.text, c.also...); strings.Join(got, "\n") != strings.Join(c.want, "\n") {
					t.Fatalf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
				}
			}
		})
	}
}

// A value of the environment stands on no line of the file.
func TestAMistakeOfTheEnvironmentSaysSo(t *testing.T) {
	t.Setenv("STRICTYAML_TEST_EVERY", "0s")
	got := strings.Join(lines(t, "every: 5s\n"), "\n")
	if want := "a.yaml:1: name: is empty: write one\nenvironment variable STRICTYAML_TEST_EVERY: every: 0s: must be positive, for example 5s"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
