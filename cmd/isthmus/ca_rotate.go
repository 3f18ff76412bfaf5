package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/isthmus-mesh/isthmus/identity"
)

func newCARotateCommand() *cobra.Command {
	var dir string
	var takeOver, finish bool
	var lifetime time.Duration
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Replace the root of a ca, in three steps",
		Long: `rotate replaces the root in a directory, one step each time, so that no connection fails:

  isthmus ca rotate            makes the next root, which is believed (bundle.pem) and signs nothing yet
  isthmus ca rotate --switch   lets it sign, once every process and every linked network believes it
  isthmus ca rotate --finish   ends the belief in the old one, once all that it has signed has ended

After each step put the files where processes read them: docs/operations.md says which, and how long to wait.`,
		Example: "  isthmus ca rotate --dir ca\n  isthmus ca rotate --dir ca --switch\n  isthmus ca rotate --dir ca --finish",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var r identity.Rotation
			var err error
			switch {
			case takeOver && finish:
				return exit(exitUsage, fmt.Errorf("--switch and --finish are two steps: give one of them"))
			case lifetime < identity.MinTTL:
				return exit(exitUsage, fmt.Errorf("--lifetime %s: too short: want at least %s", lifetime, identity.MinTTL))
			case takeOver:
				r, err = identity.SwitchRotation(dir)
			case finish:
				r, err = identity.FinishRotation(dir)
			default:
				r, err = identity.BeginRotation(dir, lifetime)
			}
			if err != nil {
				return exit(exitStart, err)
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), remaining(dir, r))
			return exit(exitStart, err)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "ca", "directory of the ca")
	cmd.Flags().BoolVar(&takeOver, "switch", false, "let the next root sign")
	cmd.Flags().BoolVar(&finish, "finish", false, "believe the old root no longer")
	cmd.Flags().DurationVar(&lifetime, "lifetime", 365*24*time.Hour, "how long the next root is valid")
	_ = cmd.MarkFlagDirname("dir")
	return cmd
}

// remaining says how far the rotation is, and what is left to do of it.
func remaining(dir string, r identity.Rotation) string {
	signs := fmt.Sprintf("root %.16s of trust domain %s signs, valid until %s\n", r.CA.Certificate().Subject.SerialNumber, r.CA.TrustDomain(), r.CA.Certificate().NotAfter.UTC().Format(time.RFC3339))
	switch {
	case r.Next != nil:
		return signs + fmt.Sprintf("root %.16s is believed beside it, and is to take over\nnext: give bundle.pem to every process and every linked network; when all have it: isthmus ca rotate --dir %s --switch\n", r.Next.Subject.SerialNumber, dir)
	case len(r.Old) > 0:
		return signs + fmt.Sprintf("root %.16s is believed still\nnext: give ca.pem and ca-key.pem to the ca; when every certificate of the old root has ended (its lifetime from now): isthmus ca rotate --dir %s --finish\n", r.Old[0].Subject.SerialNumber, dir)
	}
	return signs + "no other root is believed\n"
}
