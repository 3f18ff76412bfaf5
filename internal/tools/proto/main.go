// Command proto generates Go code from .proto files without a protoc on the
// machine: it parses them with protocompile and hands them to the pinned
// protoc-gen-go, both versions of this module's go.mod.
//
// Usage, from this directory (go run -C; see the go:generate lines):
//
//	go run . DIR FILE.proto…
//
// Each output lands beside its input in DIR.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: proto DIR FILE.proto…")
		os.Exit(2)
	}
	if err := generate(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "proto:", err)
		os.Exit(1)
	}
}

// generate compiles the files found in dir and writes their Go code there.
func generate(dir string, files []string) error {
	request, err := compile(dir, files)
	if err != nil {
		return err
	}
	input, err := proto.Marshal(request)
	if err != nil {
		return fmt.Errorf("marshal request: %w", err)
	}
	// The tool is resolved by this module's go.mod: run from its directory.
	plugin := exec.Command("go", "tool", "protoc-gen-go")
	plugin.Stdin, plugin.Stderr = bytes.NewReader(input), os.Stderr
	output, err := plugin.Output()
	if err != nil {
		return fmt.Errorf("run protoc-gen-go: %w", err)
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(output, &response); err != nil {
		return fmt.Errorf("unmarshal answer of protoc-gen-go: %w", err)
	}
	if response.Error != nil {
		return fmt.Errorf("protoc-gen-go: %s", *response.Error)
	}
	for _, f := range response.File {
		path := filepath.Join(dir, filepath.Base(f.GetName()))
		if err := os.WriteFile(path, []byte(f.GetContent()), 0o644); err != nil {
			return fmt.Errorf("write generated code: %w", err)
		}
	}
	return nil
}

// compile parses the files with their comments, which become doc comments.
func compile(dir string, files []string) (*pluginpb.CodeGeneratorRequest, error) {
	c := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{dir}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	compiled, err := c.Compile(context.Background(), files...)
	if err != nil {
		return nil, fmt.Errorf("compile: %w", err)
	}
	request := &pluginpb.CodeGeneratorRequest{
		FileToGenerate: files,
		Parameter:      proto.String("paths=source_relative"),
	}
	seen := map[string]bool{}
	for _, f := range compiled {
		imports := f.Imports()
		for i := range imports.Len() {
			if d := imports.Get(i); !seen[d.Path()] {
				seen[d.Path()] = true
				request.ProtoFile = append(request.ProtoFile, protodesc.ToFileDescriptorProto(d.FileDescriptor))
			}
		}
		request.ProtoFile = append(request.ProtoFile, descriptorOf(f))
	}
	return request, nil
}

// descriptorOf keeps the source information that protodesc would drop.
func descriptorOf(f any) *descriptorpb.FileDescriptorProto {
	type result interface {
		FileDescriptorProto() *descriptorpb.FileDescriptorProto
	}
	return f.(result).FileDescriptorProto()
}
