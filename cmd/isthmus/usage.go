package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
)

// flagError is what is said of a flag that cannot be taken, with what was probably meant.
func flagError(cmd *cobra.Command, err error) error {
	if e := (*pflag.NotExistError)(nil); errors.As(err, &e) && e.GetSpecifiedShortnames() == "" {
		if wrong := cmd.ValidateArgs(cmd.Flags().Args()); wrong != nil && cmd.HasAvailableSubCommands() {
			return wrong // a flag of a command that was mistyped
		}
		return fmt.Errorf("unknown flag: --%s%s", e.GetSpecifiedName(), meantFlag(cmd, e.GetSpecifiedName()))
	}
	if e := (*pflag.InvalidValueError)(nil); errors.As(err, &e) && e.GetFlag().Value.Type() == "duration" {
		if _, bad := time.ParseDuration(e.GetValue() + "s"); bad == nil {
			return fmt.Errorf("--%s %s: a duration has a unit: did you mean %[2]ss?", e.GetFlag().Name, e.GetValue())
		}
		return fmt.Errorf("--%s %.80q: want a duration such as 30s or 5m", e.GetFlag().Name, e.GetValue())
	}
	return err
}

// aboutClusters are flags of commands that ask clusters.
var aboutClusters = []string{"context", "contexts", "namespace", "kubeconfig"}

// meantFlag says which flag was probably meant by one that cmd does not have.
func meantFlag(cmd *cobra.Command, name string) string {
	if cmd.Flags().Lookup("admin") != nil && slices.Contains(aboutClusters, name) && strictyaml.Nearest(name, flagNames(cmd)) == "" {
		return fmt.Sprintf(": %s asks processes by --admin: in a cluster run `kubectl port-forward POD 15000` before, with --context and --namespace there", cmd.Name())
	}
	best := strictyaml.Nearest(name, flagNames(cmd))
	switch {
	case best == "":
		return ""
	case best == "contexts":
		return ": did you mean --contexts? It takes several, with commas"
	case best == "context":
		return ": did you mean --context? It takes one"
	}
	return fmt.Sprintf(": did you mean --%s?", best)
}

func flagNames(cmd *cobra.Command) (names []string) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}

// noArgs is the Args of commands that take none, or have others below them.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.HasAvailableSubCommands() {
		return unknownCommand(cmd, args[0])
	}
	remedy := ""
	switch {
	case cmd.Flags().Changed("contexts"):
		remedy = ": several contexts go into one flag, with commas: --contexts A,B"
	case cmd.Flags().Lookup("admin") != nil:
		remedy = ": addresses of processes go into --admin"
	}
	return fmt.Errorf("%q takes no arguments, and there is %.80q%s", cmd.CommandPath(), args[0], remedy)
}

func unknownCommand(cmd *cobra.Command, name string) error {
	return fmt.Errorf("unknown command %.80q for %q: %s", name, cmd.CommandPath(), strictyaml.Suggest(name, commandNames(cmd)))
}

// cardsOrCommand is the Args of link: a file that is not there may be a command that was mistyped.
func cardsOrCommand(cmd *cobra.Command, files []string) error {
	for _, f := range files {
		if _, err := os.Stat(f); err != nil && strictyaml.Nearest(f, commandNames(cmd)) != "" {
			return unknownCommand(cmd, f)
		}
	}
	return nil
}

// withUsageChecks makes cmd and all commands below it reject empty values, and gives noArgs to
// those that take no arguments.
func withUsageChecks(cmd *cobra.Command) {
	own := cmd.Args
	if own != nil && own(cmd, nil) == nil && own(cmd, []string{"x"}) != nil {
		own = noArgs
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := noEmptyValues(cmd, args); err != nil || own == nil {
			return err
		}
		return own(cmd, args)
	}
	for _, c := range cmd.Commands() {
		withUsageChecks(c)
	}
}

// noEmptyValues rejects a flag that is set to nothing, or a list with an empty entry, and an
// empty argument. In a script they come from a variable that is not set. No flag of isthmus
// has a meaning for them: the default is to leave the flag out.
func noEmptyValues(cmd *cobra.Command, args []string) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		if err == nil && (len(values) == 0 || slices.ContainsFunc(values, blank)) {
			err = fmt.Errorf("--%s %q: %s", f.Name, strings.Join(values, ","), giveValue(f, len(values)))
		}
	})
	if i := slices.IndexFunc(args, blank); err == nil && i >= 0 {
		err = fmt.Errorf("argument %d %q: the value is empty: the usage is %s", i+1, args[i], cmd.UseLine())
	}
	return err
}

// giveValue is what is wrong with a flag that has an empty value among some, and the remedy.
func giveValue(f *pflag.Flag, values int) string {
	if values > 1 {
		return "an entry is empty: write A,B without a space, as a space begins another argument"
	}
	usage, required := strings.CutSuffix(f.Usage, " (required)")
	switch {
	case required:
		return "the value is empty: give " + usage
	case strings.Trim(f.DefValue, "[]") != "":
		return fmt.Sprintf("the value is empty: give %s; or leave the flag out for %s", usage, strings.Trim(f.DefValue, "[]"))
	}
	return fmt.Sprintf("the value is empty: give %s; or leave the flag out", usage)
}

func blank(s string) bool { return strings.TrimSpace(s) == "" }

func commandNames(cmd *cobra.Command) (names []string) {
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return names
}

// addCompletion adds cobra's completion command, which writes to the output that root has now.
// Without a RunE cobra prints its help for an unknown shell, and exits with 0.
func addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	if c, _, err := root.Find([]string{"completion"}); err == nil {
		c.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		withUsageChecks(c)
	}
}

// newHelpCommand is cobra's, but that it fails where there is no such command.
func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Show help of a command",
		Long:  "help shows the help of a command: isthmus help link card is isthmus link card --help.",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if c, rest, err := cmd.Root().Find(args); err == nil && len(rest) == 0 {
				return commandNames(c), cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, rest, err := cmd.Root().Find(args)
			if err != nil {
				return err
			}
			if len(rest) > 0 && c.HasAvailableSubCommands() {
				return unknownCommand(c, rest[0])
			}
			if len(rest) > 0 {
				return fmt.Errorf("%q has no command %.80q below it: run `%[1]s --help`", c.CommandPath(), rest[0])
			}
			c.InitDefaultHelpFlag()
			c.InitDefaultVersionFlag()
			return c.Help()
		},
	}
}
