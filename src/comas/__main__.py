from comas.cli import main

main()
