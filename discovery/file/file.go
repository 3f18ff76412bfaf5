// Package file reads the description of a mesh from one YAML file and follows
// its changes.
//
// It promises that a file is taken whole or not at all: a file that cannot be
// read, is not valid YAML, has a key or value that is not understood, or
// describes no consistent mesh changes nothing, and the log says which line is
// wrong, why, and what to write instead. A process that starts with a bad file
// does not start. A file that is good but would remove much of the mesh is held
// until somebody confirms it; see [Guard].
//
// The file is polled, because that works on every file system and through the
// symbolic links of a mounted ConfigMap. Who writes the file should write a
// new one beside it and rename: a half-written list can be valid YAML. A file
// that has just been touched is given a moment to settle for this reason.
package file

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
	"github.com/isthmus-mesh/isthmus/mesh"
)

const (
	// maxBytes is the largest file that is read: 100 000 workloads of some
	// 300 bytes each, twice.
	maxBytes = 64 << 20
	// maxProblems is how many problems of one file are reported.
	maxProblems = 20
)

// Load reads the file at path and returns its snapshot with revision 1. The
// error joins one error per mistake, each with file:line, field, value and
// remedy.
func Load(path string) (*mesh.Snapshot, error) {
	data, err := read(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data, 1)
}

// Parse returns the snapshot that data describes. name is what errors call the
// file.
func Parse(name string, data []byte, revision uint64) (*mesh.Snapshot, error) {
	s, _, err := parse(name, data, revision)
	return s, err
}

func parse(name string, data []byte, revision uint64) (*mesh.Snapshot, discovery.Config, error) {
	var c discovery.Config
	doc, err := strictyaml.Parse(name, data)
	if err != nil {
		return nil, c, err
	}
	if err := doc.Decode(&c); err != nil {
		return nil, c, err
	}
	s, problems := discovery.Build(revision, c)
	if len(problems) > 0 {
		return nil, c, located(doc, problems)
	}
	return s, c, nil
}

// located puts the line before each problem.
func located(doc *strictyaml.Doc, problems []discovery.Problem) error {
	shown := problems[:min(len(problems), maxProblems)]
	errs := make([]error, 0, len(shown)+1)
	for _, p := range shown {
		errs = append(errs, fmt.Errorf("%s: %w", doc.Pos(p.Path...), p))
	}
	if more := len(problems) - len(shown); more > 0 {
		errs = append(errs, fmt.Errorf("%s: and %d more", doc.Name(), more))
	}
	return errors.Join(errs...)
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read discovery file: %w", err)
	}
	defer f.Close()
	return readAll(f)
}

// readRegular is read of a file that is followed: a pipe or a device has no content
// that could be looked at again.
func readRegular(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO that nobody writes to must not hold us
	if err != nil {
		return nil, fmt.Errorf("read discovery file: %w", err)
	}
	defer f.Close()
	switch info, err := f.Stat(); {
	case err != nil:
		return nil, fmt.Errorf("read discovery file: %w", err)
	case info.IsDir():
		return nil, fmt.Errorf("read discovery file: %s is a directory: name the file in it", path)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("read discovery file: %s is no regular file (mode %s): write the description to a file", path, info.Mode())
	}
	return readAll(f)
}

func readAll(f *os.File) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read discovery file: %w", err)
	}
	if len(data) > maxBytes {
		return nil, fmt.Errorf("read discovery file: %s is larger than %d MiB: describe fewer workloads per file", f.Name(), maxBytes>>20)
	}
	return data, nil
}
