package health

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Mode says which judges look at outcomes.
type Mode string

const (
	ModeHybrid         Mode = "hybrid" // both; the default
	ModeCircuitBreaker Mode = "circuitBreaker"
	ModeEWMA           Mode = "ewma"
	ModeOff            Mode = "off" // every key stays healthy
)

// Config has the knobs, names and defaults that users of outlier detection in
// Solo's distribution of ztunnel know. A negative floor or alpha turns the
// moving average off, a negative base or max backoff the breaker; both together
// turn outlier detection off.
type Config struct {
	Mode             Mode    `yaml:"mode" default:"hybrid" doc:"hybrid: circuit breaker and moving average; circuitBreaker or ewma: only one of them; off: neither" env:"ISTHMUS_OUTLIER_MODE"`
	EWMAHealthFloor  float64 `yaml:"ewmaHealthFloor" default:"0.05" doc:"smallest weight factor of a failing endpoint, from 0 to below 1, which keeps some connections; negative turns the moving average off" env:"EWMA_HEALTH_FLOOR"`
	EWMAAlpha        float64 `yaml:"ewmaAlpha" default:"0.3" doc:"weight of the newest outcome in the moving average, above 0 to 1; negative turns the moving average off" env:"EWMA_ALPHA"`
	FailureThreshold int     `yaml:"failureThreshold" default:"2" doc:"consecutive failures that eject an endpoint, at least 1" env:"CIRCUIT_BREAKER_FAILURE_THRESHOLD"`
	BaseBackoffSecs  float64 `yaml:"baseBackoffSecs" default:"60" doc:"longest first ejection in seconds; a successful probe ends it early. Each further ejection is twice as long; negative turns the breaker off" env:"CIRCUIT_BREAKER_BASE_BACKOFF_SECS"`
	MaxBackoffSecs   float64 `yaml:"maxBackoffSecs" default:"300" doc:"longest ejection in seconds, before jitter; negative turns the breaker off" env:"CIRCUIT_BREAKER_MAX_BACKOFF_SECS"`
	JitterFrac       float64 `yaml:"jitterFrac" default:"0.2" doc:"an ejection is randomly shorter or longer by up to this share, from 0 to below 1" env:"CIRCUIT_BREAKER_JITTER_FRAC"`
}

// DefaultConfig returns what ztunnel users expect without setting anything.
func DefaultConfig() Config {
	return Config{
		Mode: ModeHybrid, EWMAHealthFloor: 0.05, EWMAAlpha: 0.3,
		FailureThreshold: 2, BaseBackoffSecs: 60, MaxBackoffSecs: 300, JitterFrac: 0.2,
	}
}

// EWMA reports whether the moving average is in force: the mode has it and
// neither of its knobs is negative.
func (c Config) EWMA() bool {
	return (c.Mode == ModeHybrid || c.Mode == ModeEWMA) && c.EWMAHealthFloor >= 0 && c.EWMAAlpha >= 0
}

// Breaker reports whether the breaker is in force: the mode has it and neither
// of its backoffs is negative.
func (c Config) Breaker() bool {
	return (c.Mode == ModeHybrid || c.Mode == ModeCircuitBreaker) && c.BaseBackoffSecs >= 0 && c.MaxBackoffSecs >= 0
}

// Validate returns everything that cannot be, joined, in the order of the
// fields, each message beginning with the key in the file; and warnings about
// what works but is unlikely to be what was meant. Knobs of a judge that is
// turned off must be numbers and are not checked further.
func (c Config) Validate() (warnings []string, err error) {
	v := &validation{}
	switch c.Mode {
	case ModeHybrid, ModeCircuitBreaker, ModeEWMA, ModeOff:
	default:
		v.fail("mode: %q is unknown: use %s, %s, %s or %s", c.Mode, ModeHybrid, ModeCircuitBreaker, ModeEWMA, ModeOff)
	}
	c.validateEWMA(v)
	c.validateBreaker(v)
	if len(v.errs) == 0 && c.Mode != ModeOff && !c.EWMA() && !c.Breaker() {
		v.warn("outlier detection is off: mode %s leaves nothing that a negative knob does not turn off; write mode off if that is meant", c.Mode)
	}
	return v.warnings, errors.Join(v.errs...)
}

func (c Config) validateEWMA(v *validation) {
	on := c.Mode == ModeHybrid || c.Mode == ModeEWMA
	if on && (c.EWMAHealthFloor < 0 || c.EWMAAlpha < 0) {
		v.warn("the moving average is off because ewmaHealthFloor (%v) or ewmaAlpha (%v) is negative: weights follow capacity alone", c.EWMAHealthFloor, c.EWMAAlpha)
		on = false
	}
	switch f := c.EWMAHealthFloor; {
	case !v.finite("ewmaHealthFloor", f) || !on:
	case f >= 1:
		v.fail("ewmaHealthFloor: %v: must be at least 0 and below 1, or negative to turn the moving average off", f)
	case f == 0:
		v.warn("ewmaHealthFloor 0 keeps no trickle: an endpoint that failed for long gets almost no connection to recover by")
	}
	switch a := c.EWMAAlpha; {
	case !v.finite("ewmaAlpha", a) || !on:
	case a == 0 || a > 1:
		v.fail("ewmaAlpha: %v: must be above 0 and at most 1, or negative to turn the moving average off", a)
	case a > 0.5:
		v.warn("ewmaAlpha %v is above 0.5: health follows the last one or two outcomes, so a single failure moves most of an endpoint's share", a)
	case a < 0.05:
		v.warn("ewmaAlpha %v is below 0.05: health remembers more than 20 outcomes, so a failing endpoint keeps its share for long", a)
	}
}

func (c Config) validateBreaker(v *validation) {
	on := c.Mode == ModeHybrid || c.Mode == ModeCircuitBreaker
	if on && (c.BaseBackoffSecs < 0 || c.MaxBackoffSecs < 0) {
		v.warn("the breaker is off because baseBackoffSecs (%v) or maxBackoffSecs (%v) is negative: nothing is ever ejected", c.BaseBackoffSecs, c.MaxBackoffSecs)
		on = false
	}
	if on && c.FailureThreshold < 1 {
		v.fail("failureThreshold: %d: must be at least 1; a negative baseBackoffSecs turns the breaker off", c.FailureThreshold)
	}
	base, limit := v.finite("baseBackoffSecs", c.BaseBackoffSecs), v.finite("maxBackoffSecs", c.MaxBackoffSecs)
	if on && base && limit && c.MaxBackoffSecs < c.BaseBackoffSecs {
		v.warn("maxBackoffSecs %v is below baseBackoffSecs %v: every ejection lasts %v seconds", c.MaxBackoffSecs, c.BaseBackoffSecs, c.MaxBackoffSecs)
	}
	if v.finite("jitterFrac", c.JitterFrac) && on && (c.JitterFrac < 0 || c.JitterFrac >= 1) {
		v.fail("jitterFrac: %v: must be at least 0 and below 1", c.JitterFrac)
	}
}

type validation struct {
	warnings []string
	errs     []error
}

func (v *validation) warn(format string, args ...any) {
	v.warnings = append(v.warnings, fmt.Sprintf(format, args...))
}

func (v *validation) fail(format string, args ...any) {
	v.errs = append(v.errs, fmt.Errorf(format, args...))
}

// seconds converts s, keeping what does not fit at the longest duration.
func seconds(s float64) time.Duration {
	if ns := s * float64(time.Second); ns < math.MaxInt64 {
		return time.Duration(ns)
	}
	return math.MaxInt64
}

// finite notes a value that is no number.
func (v *validation) finite(key string, value float64) bool {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		v.fail("%s: %v: must be a finite number", key, value)
		return false
	}
	return true
}
