# A success while healthy forgets the failure before it: two failures with a
# success between them do not eject.
0s begin a                           | healthy health=1.000 failures=0 ejections=0
0s end a failure                     | healthy health=0.700 failures=1 ejections=0
1s begin b                           | healthy health=0.700 failures=1 ejections=0
1s end b success                     | healthy health=0.790 failures=0 ejections=0
2s begin c                           | healthy health=0.790 failures=0 ejections=0
2s end c failure                     | healthy health=0.553 failures=1 ejections=0
3s begin d                           | healthy health=0.553 failures=1 ejections=0
3s end d success                     | healthy health=0.687 failures=0 ejections=0
