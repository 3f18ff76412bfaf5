// Package buildinfo says from what this program was built.
package buildinfo

import "runtime/debug"

// stamp is what git describe said when make built the program; empty: somebody else did.
var stamp string

// Version is the stamp of make; without one the version of the module, or the commit
// that the go command noted, and (devel) if it noted none.
func Version() string {
	info, _ := debug.ReadBuildInfo()
	return version(stamp, info)
}

func version(stamp string, info *debug.BuildInfo) string {
	const unknown = "(devel)"
	switch {
	case stamp != "":
		return stamp
	case info == nil:
		return unknown
	case info.Main.Version != "" && info.Main.Version != unknown:
		return info.Main.Version
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	v := settings["vcs.revision"]
	if v == "" {
		return unknown
	}
	if v = v[:min(len(v), 12)]; settings["vcs.modified"] == "true" {
		v += "-dirty"
	}
	return v
}
