package health

import (
	"math"
	"strings"
	"testing"
)

func TestDefaultConfigIsValid(t *testing.T) {
	c := DefaultConfig()
	warnings, err := c.Validate()
	if err != nil || len(warnings) > 0 || !c.EWMA() || !c.Breaker() {
		t.Errorf("Validate() = %q, %v; EWMA %t, breaker %t", warnings, err, c.EWMA(), c.Breaker())
	}
}

func TestValidateRejects(t *testing.T) {
	cases := map[string]func(*Config){
		`mode: "hybird" is unknown: use hybrid, circuitBreaker, ewma or off`:                                                                        func(c *Config) { c.Mode = "hybird" },
		`mode: "" is unknown: use hybrid, circuitBreaker, ewma or off`:                                                                              func(c *Config) { c.Mode = "" },
		`ewmaAlpha: 0: must be above 0 and at most 1, or negative to turn the moving average off`:                                                   func(c *Config) { c.EWMAAlpha = 0 },
		`ewmaAlpha: 1.1: must be above 0 and at most 1, or negative to turn the moving average off`:                                                 func(c *Config) { c.EWMAAlpha = 1.1 },
		`ewmaAlpha: NaN: must be a finite number`:                                                                                                   func(c *Config) { c.EWMAAlpha = math.NaN() },
		`ewmaHealthFloor: 1: must be at least 0 and below 1, or negative to turn the moving average off`:                                            func(c *Config) { c.EWMAHealthFloor = 1 },
		`maxBackoffSecs: +Inf: must be a finite number`:                                                                                             func(c *Config) { c.MaxBackoffSecs = math.Inf(1) },
		`failureThreshold: 0: must be at least 1; a negative baseBackoffSecs turns the breaker off`:                                                 func(c *Config) { c.FailureThreshold = 0 },
		`jitterFrac: 1: must be at least 0 and below 1`:                                                                                             func(c *Config) { c.JitterFrac = 1 },
		`jitterFrac: -0.1: must be at least 0 and below 1`:                                                                                          func(c *Config) { c.JitterFrac = -0.1 },
		"failureThreshold: -2: must be at least 1; a negative baseBackoffSecs turns the breaker off\njitterFrac: 2: must be at least 0 and below 1": func(c *Config) { c.FailureThreshold, c.JitterFrac = -2, 2 },
	}
	for want, set := range cases {
		c := DefaultConfig()
		set(&c)
		if _, err := c.Validate(); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

func TestValidateWarns(t *testing.T) {
	cases := map[string]struct {
		set  func(*Config)
		want []string
	}{
		"alpha 0.6":            {func(c *Config) { c.EWMAAlpha = 0.6 }, []string{"ewmaAlpha 0.6 is above 0.5: health follows the last one or two outcomes"}},
		"alpha 0.5":            {func(c *Config) { c.EWMAAlpha = 0.5 }, nil},
		"alpha 0.05":           {func(c *Config) { c.EWMAAlpha = 0.05 }, nil},
		"alpha 0.04":           {func(c *Config) { c.EWMAAlpha = 0.04 }, []string{"ewmaAlpha 0.04 is below 0.05: health remembers more than 20 outcomes"}},
		"alpha 1":              {func(c *Config) { c.EWMAAlpha = 1 }, []string{"ewmaAlpha 1 is above 0.5"}},
		"floor 0":              {func(c *Config) { c.EWMAHealthFloor = 0 }, []string{"ewmaHealthFloor 0 keeps no trickle"}},
		"negative floor":       {func(c *Config) { c.EWMAHealthFloor = -1 }, []string{"the moving average is off because ewmaHealthFloor (-1) or ewmaAlpha (0.3) is negative"}},
		"negative max":         {func(c *Config) { c.MaxBackoffSecs = -1 }, []string{"the breaker is off because baseBackoffSecs (60) or maxBackoffSecs (-1) is negative"}},
		"max below base":       {func(c *Config) { c.MaxBackoffSecs = 30 }, []string{"maxBackoffSecs 30 is below baseBackoffSecs 60: every ejection lasts 30 seconds"}},
		"off":                  {func(c *Config) { c.Mode = ModeOff }, nil},
		"off with odd knobs":   {func(c *Config) { c.Mode, c.EWMAAlpha, c.FailureThreshold = ModeOff, 7, -1 }, nil},
		"breaker, odd alpha":   {func(c *Config) { c.Mode, c.EWMAAlpha = ModeCircuitBreaker, 7 }, nil},
		"ewma, odd threshold":  {func(c *Config) { c.Mode, c.FailureThreshold = ModeEWMA, 0 }, nil},
		"both negative":        {func(c *Config) { c.EWMAAlpha, c.BaseBackoffSecs = -1, -1 }, []string{"the moving average is off", "the breaker is off", "outlier detection is off: mode hybrid leaves nothing"}},
		"ewma, negative alpha": {func(c *Config) { c.Mode, c.EWMAAlpha = ModeEWMA, -1 }, []string{"the moving average is off", "outlier detection is off: mode ewma leaves nothing"}},
	}
	for name, c := range cases {
		cfg := DefaultConfig()
		c.set(&cfg)
		got, err := cfg.Validate()
		if err != nil || len(got) != len(c.want) {
			t.Errorf("%s: warnings %q, error %v; want %q", name, got, err, c.want)
			continue
		}
		for i := range got {
			if !strings.HasPrefix(got[i], c.want[i]) {
				t.Errorf("%s: warning %q, want %q…", name, got[i], c.want[i])
			}
		}
	}
}

// An unvalidated config may be nonsense; a tracker made of it must still work.
func TestTrackerSurvivesAnyConfig(t *testing.T) {
	odd := []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, 0, 1e300, 5e-324}
	for _, x := range odd {
		for _, mode := range []Mode{ModeHybrid, "nonsense"} {
			tr := NewTracker[int](Config{mode, x, x, -3, x, x, x}, nil)
			for range 100 {
				try(tr, 1, Failure, t0)
			}
			if w := tr.Weight(1, t0); !(w > 0) && !math.IsNaN(x) {
				t.Errorf("knobs %v: weight %v, want a positive one", x, w)
			}
		}
	}
}
