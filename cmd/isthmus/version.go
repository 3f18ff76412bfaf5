package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/isthmus-mesh/isthmus/internal/buildinfo"
)

// version is what the build says about itself; empty parts are unknown.
type version struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"` // built from a changed work tree
	Time     string `json:"time,omitempty"`     // of the revision, RFC 3339
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newVersionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  cobra.NoArgs,
	}
	format, check := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := check(); err != nil {
			return err
		}
		v := buildVersion()
		if *format == "json" {
			return exit(exitStart, json.NewEncoder(cmd.OutOrStdout()).Encode(v))
		}
		_, err := fmt.Fprintln(cmd.OutOrStdout(), v)
		return exit(exitStart, err)
	}
	return cmd
}

func buildVersion() version {
	v := version{Version: buildinfo.Version(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		case "vcs.time":
			v.Time = s.Value
		}
	}
	return v
}

func (v version) String() string {
	s := "isthmus " + v.Version
	if v.Revision != "" {
		s += " revision " + v.Revision
	}
	if v.Modified {
		s += " (modified)"
	}
	return s + " " + v.Go + " " + v.Platform
}
