// Package strictyaml reads configuration the way an operator would want it
// read: nothing is guessed and nothing is ignored. An unknown key, a key given
// twice, a value of the wrong kind, an empty file and a second document are
// errors, and every error says file, line, field, value and what to write
// instead.
//
// It promises never to panic on input, and to find all mistakes of a file in
// one pass. It knows time.Duration ("250ms"), everything with UnmarshalText
// (netip.Addr, netip.AddrPort), nested and inlined structs, lists, and maps
// with text keys; a key that is left out, or has an empty value, keeps what the
// struct held before, so defaults are filled in first.
//
// It will not expand anchors and aliases: a value stands on its own line.
//
// Struct tags: yaml:"camelCase" names the key (yaml:",inline" lifts an embedded
// struct's keys), doc:"one line" and default:"value" feed [Keys], env:"NAME"
// feeds [ApplyEnv].
package strictyaml
