package buildinfo

import (
	"runtime/debug"
	"testing"
)

func TestVersionIsTheBestThatIsKnown(t *testing.T) {
	built := func(version string, settings ...string) *debug.BuildInfo {
		b := &debug.BuildInfo{Main: debug.Module{Version: version}}
		for i := 0; i < len(settings); i += 2 {
			b.Settings = append(b.Settings, debug.BuildSetting{Key: settings[i], Value: settings[i+1]})
		}
		return b
	}
	const commit = "0123456789abcdef0123456789abcdef01234567"
	for _, c := range []struct {
		stamp string
		info  *debug.BuildInfo
		want  string
	}{
		{"v1.2.3-4-gabcdef", built("v1.0.0"), "v1.2.3-4-gabcdef"},
		{"", built("v1.0.0"), "v1.0.0"},
		{"", built("(devel)", "vcs.revision", commit), "0123456789ab"},
		{"", built("", "vcs.revision", commit, "vcs.modified", "true"), "0123456789ab-dirty"},
		{"", built("(devel)"), "(devel)"},
		{"", nil, "(devel)"},
	} {
		if got := version(c.stamp, c.info); got != c.want {
			t.Errorf("version(%q, %v) = %q, want %q", c.stamp, c.info, got, c.want)
		}
	}
}
