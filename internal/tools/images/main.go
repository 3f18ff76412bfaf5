// Command images puts static binaries into OCI images, without a base image, a registry or
// a daemon: for each program one image of several architectures, as an image layout
// (directory) and as the same in a tar. What comes out depends on its arguments and the
// binaries alone, so that the same source gives the same bytes.
//
//	images --bin build/images/bin --out build/images --version v1.2.3 --created 1700000000
//
// reads build/images/bin/<architecture>/<program> and writes build/images/<program>/,
// build/images/<program>.tar and build/images/digests.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func main() {
	bin := flag.String("bin", "build/images/bin", "directory of <architecture>/<program>")
	out := flag.String("out", "build/images", "directory that the images go to")
	version := flag.String("version", "", "version of the programs (required)")
	created := flag.Int64("created", 0, "when the source was written, as Unix time")
	only := flag.String("architectures", strings.Join(architectures, ","), "what the images are for, by commas")
	registry := flag.String("registry", "localhost", "what stands before the names of the images")
	flag.Parse()
	if *version == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	architectures = strings.Split(*only, ",")
	if err := run(*bin, *out, *registry, *version, time.Unix(*created, 0).UTC()); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func run(bin, out, registry, version string, created time.Time) error {
	programs, err := programsOf(bin)
	if err != nil {
		return err
	}
	var digests strings.Builder
	for _, name := range programs {
		x := image{name: name, registry: registry, version: version, created: created, bin: bin}
		index, err := x.build()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		digest, err := x.write(index, filepath.Join(out, name))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		fmt.Fprintf(&digests, "%s %s:%s\n", digest, name, version)
	}
	fmt.Print(digests.String())
	return os.WriteFile(filepath.Join(out, "digests"), []byte(digests.String()), 0o644)
}

// architectures of the images, in the order of their manifests.
var architectures = []string{"amd64", "arm64"}

// programsOf lists what bin has of every architecture.
func programsOf(bin string) (names []string, err error) {
	for i, arch := range architectures {
		entries, err := os.ReadDir(filepath.Join(bin, arch))
		if err != nil {
			return nil, err
		}
		var here []string
		for _, e := range entries {
			here = append(here, e.Name())
		}
		if i > 0 && !slices.Equal(names, here) {
			return nil, fmt.Errorf("%s has %q of %s, and %q of %s: want the same programs", bin, names, architectures[0], here, arch)
		}
		names = here
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s has no program", bin)
	}
	return names, nil
}
